#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fakes/nccl/communicator.h"
#include "tests/fakes/nccl/settings.h"

namespace fake_nccl {
namespace {

struct Registry {
  std::mutex mutex;  // guards all below
  std::map<const ncclComm*, std::shared_ptr<Communicator>> alive;
  std::string last_error;
};

// Never freed: threads of the library may outlive main.
Registry& TheRegistry() {
  static Registry* state = new Registry;
  return *state;
}

std::vector<std::shared_ptr<Communicator>> All() {
  Registry& state = TheRegistry();
  const std::lock_guard<std::mutex> lock(state.mutex);
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& [handle, communicator] : state.alive) all.push_back(communicator);
  return all;
}

}  // namespace

ncclComm_t Communicators::Add(std::shared_ptr<Communicator> communicator) {
  // A handle is never used twice, so that one that is used after its end is always found out.
  static char* const base = reinterpret_cast<char*>(0x1000);
  static long made = 0;
  Registry& state = TheRegistry();
  const std::lock_guard<std::mutex> lock(state.mutex);
  auto* handle = reinterpret_cast<ncclComm_t>(base + 16 * ++made);
  state.alive[handle] = std::move(communicator);
  return handle;
}

std::shared_ptr<Communicator> Communicators::Find(const ncclComm* handle) {
  Registry& state = TheRegistry();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto found = state.alive.find(handle);
    if (found != state.alive.end()) return found->second;
  }
  Count("bad_handles");
  Say("a communicator is used that does not exist, or not any more");
  SetLastError("no such communicator");
  return nullptr;
}

void Communicators::Remove(const ncclComm* handle) {
  Registry& state = TheRegistry();
  std::shared_ptr<Communicator> last;  // destroyed after the lock is free
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.alive.find(handle);
  if (found == state.alive.end()) return;
  last = std::move(found->second);
  state.alive.erase(found);
}

long Communicators::Alive() { return static_cast<long>(All().size()); }

void Communicators::Kill(int rank) {
  for (const auto& communicator : All()) {
    if (communicator->rank() == rank) communicator->PlayDead();
  }
}

void SetLastError(const std::string& text) {
  Registry& state = TheRegistry();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.last_error = text;
}

std::string LastError() {
  Registry& state = TheRegistry();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.last_error;
}

}  // namespace fake_nccl
