// The libraries that pretend to be NCCL do what their names say.
#include <dlfcn.h>

#include <string>

#include "tests/cc/test.h"

namespace tfring::testing::broken_nccl_test {
namespace {

// What ncclGetVersion of a library returns and says.
std::pair<int, int> Version(const std::string& name) {
  void* handle = dlopen((TFRING_FAKES_DIR "/libnccl_" + name + ".so").c_str(), RTLD_NOW);
  EXPECT_TRUE(handle != nullptr);
  if (handle == nullptr) return {-1, -1};
  auto* get = reinterpret_cast<int (*)(int*)>(dlsym(handle, "ncclGetVersion"));
  int version = 0;
  const int result = get(&version);
  return {result, version};
}

bool Has(const std::string& name, const char* symbol) {
  void* handle = dlopen((TFRING_FAKES_DIR "/libnccl_" + name + ".so").c_str(), RTLD_NOW);
  return handle != nullptr && dlsym(handle, symbol) != nullptr;
}

TEST(BrokenLibraries) {
  EXPECT_TRUE(Version("too_old") == std::make_pair(0, 21705));
  EXPECT_TRUE(Version("version_fails").first == 3);
  EXPECT_TRUE(Version("lacks_init").first == 0);
  EXPECT_TRUE(!Has("lacks_init", "ncclCommInitRankConfig"));
  EXPECT_TRUE(Has("id_hangs", "ncclCommInitRankConfig"));
  EXPECT_TRUE(Has("id_fails", "ncclGetUniqueId"));
  EXPECT_TRUE(Has("version_hangs", "ncclGetVersion"));
  EXPECT_TRUE(dlopen(TFRING_FAKES_DIR "/libnccl_no_library.so", RTLD_NOW) == nullptr);
}

}  // namespace
}  // namespace tfring::testing::broken_nccl_test
