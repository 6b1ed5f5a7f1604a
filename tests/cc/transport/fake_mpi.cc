#include "tests/cc/transport/fake_mpi.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace tfring {
namespace {

constexpr int kRanksOfWorld = 1000;  // in a handle
constexpr int kBroken = 17;

struct Request {
  bool receives = false;
  void* data = nullptr;
  int bytes = 0;
  int world = 0;
  std::pair<Rank, Rank> way;   // from, to
  Request* matched = nullptr;  // a receive with a send, a send with a receive
  bool complete = false;
};

struct Communicator {
  int world = 0;
  Rank rank = kNoRank;
};

struct Fake {
  std::mutex mutex;                       // guards all of the following
  std::map<int, int> sizes;               // by world
  std::set<Communicator*> communicators;  // that are open; some are left so on purpose
  int requests = 0;
  std::map<std::pair<int, std::pair<Rank, Rank>>, std::deque<Request*>> sends;
  std::map<std::pair<int, std::pair<Rank, Rank>>, std::deque<Request*>> receives;

  std::atomic<MpiFunctions::State> state{MpiFunctions::kReady};
  std::atomic<bool> broken{false};
};

Fake& It() {
  static auto* fake = new Fake;
  return *fake;
}

MpiFunctions::State State() { return It().state; }

void* Open(int handle, int* rank, int* size) {
  Fake& fake = It();
  std::lock_guard<std::mutex> lock(fake.mutex);
  const auto found = fake.sizes.find(handle / kRanksOfWorld);
  if (found == fake.sizes.end()) return nullptr;
  *rank = handle % kRanksOfWorld;
  *size = found->second;
  return *fake.communicators.insert(new Communicator{found->first, *rank}).first;
}

int Close(void* communicator) {
  std::lock_guard<std::mutex> lock(It().mutex);
  auto* closed = static_cast<Communicator*>(communicator);
  It().communicators.erase(closed);
  delete closed;
  return 0;
}

int Begin(bool receives, void* communicator, void* data, int bytes, Rank peer,
          MpiRequest* request) {
  Fake& fake = It();
  if (fake.broken) return kBroken;
  std::lock_guard<std::mutex> lock(fake.mutex);
  const auto* comm = static_cast<Communicator*>(communicator);
  auto way = receives ? std::make_pair(peer, comm->rank) : std::make_pair(comm->rank, peer);
  auto* made = new Request{receives, data, bytes, comm->world, way};
  (receives ? fake.receives : fake.sends)[{comm->world, way}].push_back(made);
  ++fake.requests;
  *request = reinterpret_cast<MpiRequest>(made);
  return 0;
}

int Send(void* communicator, const void* data, int bytes, int to, MpiRequest* request) {
  return Begin(false, communicator, const_cast<void*>(data), bytes, to, request);
}

int Receive(void* communicator, void* data, int bytes, int from, MpiRequest* request) {
  return Begin(true, communicator, data, bytes, from, request);
}

// The first receive of a way gets the first message, which comes with a call for the latter.
void Match(Fake* fake, const Request& receive) {
  auto& sends = fake->sends[{receive.world, receive.way}];
  auto& receives = fake->receives[{receive.world, receive.way}];
  while (!sends.empty() && !receives.empty()) {
    sends.front()->matched = receives.front();
    receives.front()->matched = sends.front();
    sends.pop_front();
    receives.pop_front();
  }
}

void Move(Request* send) {
  Request* to = send->matched;
  std::memcpy(to->data, send->data, static_cast<size_t>(std::min(send->bytes, to->bytes)));
  to->bytes = send->bytes;
  send->complete = true;
  to->complete = true;
}

int Test(MpiRequest* request, bool* done, int* bytes) {
  Fake& fake = It();
  if (fake.broken) return kBroken;
  std::lock_guard<std::mutex> lock(fake.mutex);
  auto* it = reinterpret_cast<Request*>(*request);
  if (it->receives && it->matched == nullptr) Match(&fake, *it);
  if (!it->receives && it->matched != nullptr) Move(it);
  *done = it->complete;
  if (!it->complete) return 0;
  *bytes = it->bytes;
  --fake.requests;
  delete it;
  *request = 0;
  return 0;
}

int Cancel(MpiRequest* request) {
  Fake& fake = It();
  std::lock_guard<std::mutex> lock(fake.mutex);
  auto* it = reinterpret_cast<Request*>(*request);
  Match(&fake, *it);
  if (it->matched != nullptr) return 0;
  auto& waiting = fake.receives[{it->world, it->way}];
  waiting.erase(std::find(waiting.begin(), waiting.end(), it));
  it->complete = true;
  it->bytes = -1;
  return 0;
}

void ErrorText(int code, char* text, int size) {
  (void)std::snprintf(text, static_cast<size_t>(size), "fake error %d", code);
}

constexpr MpiFunctions kFunctions = {
    kMpiFunctionsLayout, State, Open, Close, Send, Receive, Test, Cancel, ErrorText};

}  // namespace

const MpiFunctions* FakeMpi() { return &kFunctions; }

int NewFakeMpiWorld(int size) {
  std::lock_guard<std::mutex> lock(It().mutex);
  const int world = static_cast<int>(It().sizes.size()) + 1;
  It().sizes[world] = size;
  return world;
}

int FakeMpiHandle(int world, Rank rank) { return world * kRanksOfWorld + rank; }

void SetFakeMpiState(MpiFunctions::State state) { It().state = state; }

void BreakFakeMpi(bool broken) { It().broken = broken; }

int OpenFakeMpiCommunicators() {
  std::lock_guard<std::mutex> lock(It().mutex);
  return static_cast<int>(It().communicators.size());
}

int OpenFakeMpiRequests() {
  std::lock_guard<std::mutex> lock(It().mutex);
  return It().requests;
}

}  // namespace tfring
