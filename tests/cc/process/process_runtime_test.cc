// The process-wide runtime: init, shutdown and init again, from every side, and forked children.
#include "ops/runtime/process/process_runtime.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::process_runtime_test {
namespace {

ProcessRuntime& Runtime() { return ProcessRuntime::Get(); }

void Enqueue(Call* call) { EnqueueIn(0, call->request, call->MakeLocalCall()); }

// This process is rank 0 of 2; `peer` plays rank 1 with transports and a backend of its own.
struct TwoRanks {
  TwoRanks() {
    JobSockets sockets(2, Link::kTcp);
    options.topology.size = 2;
    options.topology.local_size = 2;
    options.hosts = {"a", "b"};
    options.control_fds = sockets.control[0];
    options.data_fds = sockets.data[0];
    RankRuntimeParts parts;
    parts.engine.rank = 1;
    parts.engine.size = 2;
    parts.control = ControlOver(sockets.control[1]);
    auto data = std::make_shared<std::unique_ptr<DataTransport>>(DataOver(sockets.data[1]));
    parts.make_backend = [data](CompletionSink sink,
                                ThreadPool*) -> std::unique_ptr<CollectiveBackend> {
      return std::make_unique<CpuBackend>(1, Config(), std::move(*data), std::move(sink));
    };
    auto started = RankRuntime::Start(std::move(parts));
    if (started.ok()) peer = std::move(*started);
  }
  InitOptions options;
  std::unique_ptr<RankRuntime> peer;
};

TEST(BeforeInitEverythingSaysSo) {
  EXPECT_TRUE(!Runtime().initialized());
  EXPECT_TRUE(!Runtime().topology().ok());
  EXPECT_TRUE(Runtime().Current().status().code() == StatusCode::kFailedPrecondition);
  auto call = Allreduce("early", {1}, 1.0f);
  Enqueue(call.get());
  Status status = call->Wait();
  EXPECT_TRUE(status.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(status.message(), "init()");
  Runtime().Shutdown();
}

// Sanitizers need more address space than can be limited.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(AnExceptionInInitCanBeFollowedByAnotherInit) {
  JobSockets sockets(3, Link::kTcp);
  InitOptions options;
  options.topology.rank = 1;
  options.topology.size = 1 << 25;  // the engine keeps something for every rank
  options.control_fds = sockets.control[1];
  options.data_fds = sockets.data[1];
  for (Rank other : {0, 2}) {
    for (auto [peer, fd] : sockets.control[other]) close(fd);
    for (auto [peer, fd] : sockets.data[other]) close(fd);
  }
  rlimit before{};
  ASSERT_TRUE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit tight = before;
  tight.rlim_cur = 600u << 20;
  ASSERT_TRUE(setrlimit(RLIMIT_AS, &tight) == 0);
  const Status failed = Runtime().Init(options);
  ASSERT_TRUE(setrlimit(RLIMIT_AS, &before) == 0);
  EXPECT_TRUE(failed.code() == StatusCode::kInternal);
  EXPECT_CONTAINS(failed.message(), "rank 1 could not start the runtime (std::bad_alloc)");
  EXPECT_TRUE(!Runtime().initialized());
  Runtime().Shutdown();
  ASSERT_TRUE(Runtime().Init(InitOptions()).ok());
  Runtime().Shutdown();
}
#endif

TEST(AFailedInitClosesItsDescriptors) {
  auto [ours, theirs] = ConnectedSockets(Link::kTcp);
  InitOptions options;
  options.topology.size = 2;
  options.control_fds = {{1, ours}};  // and no data connection
  Status status = Runtime().Init(std::move(options));
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), "data connection to rank 1");
  EXPECT_EQ(fcntl(ours, F_GETFD), -1);
  close(theirs);
  EXPECT_TRUE(!Runtime().initialized());
}

TEST(ShutdownInsideADoneDoesNotDeadlock) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Runtime().Init(InitOptions()).ok());
    auto call = Allreduce("last", {1}, 1.0f);
    std::promise<void> ended;
    LocalCall local = call->MakeLocalCall();
    local.done = [&](const Status&) {
      Runtime().Shutdown();
      EXPECT_TRUE(!Runtime().initialized());
      EXPECT_TRUE(!Runtime().Init(InitOptions()).ok());  // it would have to wait for itself
      Runtime().Shutdown();
      ended.set_value();
    };
    EnqueueIn(0, call->request, std::move(local));
    ended.get_future().wait();
    Runtime().Shutdown();  // waits for the other
    EXPECT_TRUE(!Runtime().initialized());
  }
}

int OpenSockets() {
  int count = 0;
  for (int fd = 3; fd < 256; ++fd) {
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)) ++count;
  }
  return count;
}

TEST(AForkedChildHasNoSocketsAndIsToldWhy) {
  TwoRanks ranks;
  ASSERT_TRUE(Runtime().Init(std::move(ranks.options)).ok());
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    Request request;
    request.name = "in child";
    request.shapes = {Shape{}};
    LocalCall local;
    local.done = [&](const Status& status) {
      refused = status.code() == StatusCode::kFailedPrecondition &&
                status.message().find("forked child") != std::string::npos;
    };
    EnqueueIn(0, request, std::move(local));
    const bool init_refused = !Runtime().Init(InitOptions()).ok();
    Runtime().Shutdown();
    const bool knows_its_rank = Runtime().topology().ok() && Runtime().topology()->size == 2;
    refused = refused && init_refused && !Runtime().Current().ok();
    _exit(OpenSockets() == 0 && refused && knows_its_rank && !Runtime().initialized() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  auto mine = Allreduce("still fine", {1}, 1.0f);
  auto theirs = Allreduce("still fine", {1}, 1.0f);
  Enqueue(mine.get());
  theirs->Start(ranks.peer.get());
  EXPECT_TRUE(mine->Wait().ok() && theirs->Wait().ok());
  std::thread leaving([&] { ranks.peer->Shutdown(); });
  Runtime().Shutdown();
  leaving.join();
}

}  // namespace
}  // namespace tfring::process_runtime_test
