// Libraries that pretend to be NCCL and are of no use; one program text, compiled once per fault:
//   FAKE_NCCL_VERSION=n       ncclGetVersion says n (too old)
//   FAKE_NCCL_VERSION_FAILS   ncclGetVersion gives an error
//   FAKE_NCCL_VERSION_HANGS   ncclGetVersion does not return
//   FAKE_NCCL_ID_HANGS        ncclGetUniqueId does not return
//   FAKE_NCCL_ID_FAILS        ncclGetUniqueId gives an error
//   FAKE_NCCL_LACKS_INIT      there is no ncclCommInitRankConfig
// Everything else is there and answers with ncclInternalError.
#include <unistd.h>

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

namespace {

[[maybe_unused]] void Hang() {
  for (;;) pause();
}

constexpr int kInternalError = 3;

}  // namespace

FAKE_NCCL_API int ncclGetVersion([[maybe_unused]] int* version) {
#ifdef FAKE_NCCL_VERSION_HANGS
  Hang();
#endif
#ifdef FAKE_NCCL_VERSION_FAILS
  return kInternalError;
#else
#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22707
#endif
  *version = FAKE_NCCL_VERSION;
  return 0;
#endif
}

FAKE_NCCL_API int ncclGetUniqueId([[maybe_unused]] void* id) {
#ifdef FAKE_NCCL_ID_HANGS
  Hang();
#endif
#ifdef FAKE_NCCL_ID_FAILS
  return kInternalError;
#else
  for (int i = 0; i < 128; ++i) static_cast<char*>(id)[i] = static_cast<char>(i);
  return 0;
#endif
}

FAKE_NCCL_API const char* ncclGetErrorString(int) { return "internal error"; }
FAKE_NCCL_API const char* ncclGetLastError(void*) { return "a library that is of no use"; }

#define FAKE_NCCL_FAILING(name) \
  FAKE_NCCL_API int name() { return kInternalError; }
#ifndef FAKE_NCCL_LACKS_INIT
FAKE_NCCL_FAILING(ncclCommInitRankConfig)
#endif
FAKE_NCCL_FAILING(ncclCommFinalize)
FAKE_NCCL_FAILING(ncclCommDestroy)
FAKE_NCCL_FAILING(ncclCommAbort)
FAKE_NCCL_FAILING(ncclCommGetAsyncError)
FAKE_NCCL_FAILING(ncclGroupStart)
FAKE_NCCL_FAILING(ncclGroupEnd)
FAKE_NCCL_FAILING(ncclAllReduce)
FAKE_NCCL_FAILING(ncclReduce)
FAKE_NCCL_FAILING(ncclReduceScatter)
FAKE_NCCL_FAILING(ncclBroadcast)
FAKE_NCCL_FAILING(ncclAllGather)
FAKE_NCCL_FAILING(ncclSend)
FAKE_NCCL_FAILING(ncclRecv)
