// For wheels (TFRING_OLDER_LIBSTDCXX): std::condition_variable::wait as libraries of GCC 11 have
// it.
//
// The libstdc++ of GCC 12 has this function twice, under two versions of its name, and the linker
// takes the newer one: then a library does not load where that of GCC 11 is installed, on RHEL 9
// for example. It is all that tfring takes from that version. Both do the same. The linker is told
// (--wrap) to let calls come here, and from here they go to the older one.

extern "C" {

void OlderWait(void* condition, void* lock);
__asm__(
    ".symver OlderWait,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

[[gnu::visibility("hidden")]] void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    void* condition, void* lock) {
  OlderWait(condition, lock);
}

}  // extern "C"
