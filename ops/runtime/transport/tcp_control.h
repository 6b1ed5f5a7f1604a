#ifndef TFRING_OPS_RUNTIME_TRANSPORT_TCP_CONTROL_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_TCP_CONTROL_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/transport/frame_mac.h"
#include "ops/runtime/transport/framing.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// Control frames over connected stream sockets. One epoll waits for the sockets, for Wake and for
// the end of peer processes on this host, because a forked child may hold a dead peer's socket
// open. Each frame carries a MAC if the peer has keys, and a wrong MAC ends the connection. Threads
// as ControlTransport says. Lives for one generation. The destructor closes connections that Close
// has not closed, without waiting.
class TcpControlTransport final : public ControlTransport {
 public:
  struct Peer {
    Rank rank = kNoRank;
    UniqueFd socket;
    int64_t pid = 0;  // of a peer on this host; 0: unknown
    // MAC keys for sending and for receiving. Both empty: no MACs.
    std::string send_key;
    std::string receive_key;
  };

  // InvalidArgument names the rank whose descriptor is not a socket, or whose keys have a wrong
  // size. `processes` are processes of other ranks on this host, also of ranks that are not peers:
  // the end of such a process is a lost peer, too.
  static Result<std::unique_ptr<TcpControlTransport>> Create(
      std::vector<Peer> peers, const std::map<Rank, int64_t>& processes = {});

  ~TcpControlTransport() override;

  void Send(Rank to, std::string frame) override;
  void Wait(TimePoint deadline, std::vector<ControlEvent>* events) override;
  void Wake() override;
  void Close(TimePoint deadline) override;
  int64_t wakeups() const override { return wakeups_.load(std::memory_order_relaxed); }

 private:
  struct Link;
  // How a read from a socket ended: it filled the buffer or a part of it, found nothing, or met the
  // end of the stream.
  enum class Reading { kFull, kPart, kBlocked, kEnded };

  struct Process {
    Rank rank = kNoRank;
    int64_t pid = 0;
    UniqueFd pidfd;
  };

  TcpControlTransport(UniqueFd epoll, UniqueFd wake);
  Status AddLink(Peer peer);
  Status AddProcess(Rank rank, int64_t pid);
  Status Register(int fd, uint32_t events, uint64_t tag);
  Link* Find(Rank rank) const;

  int Poll(int timeout, bool* woken, std::vector<ControlEvent>* events);
  Reading ReadOnce(Link* link, std::vector<ControlEvent>* events, std::string* reason);
  void ReadSome(Link* link, std::vector<ControlEvent>* events);
  void ReadToEnd(Link* link, std::string reason, std::vector<ControlEvent>* events);
  void ReportLoss(Link* link, std::string reason, std::vector<ControlEvent>* events);
  void Flush(Link* link);
  void WatchWritable(Link* link, bool on);
  void FailWriting(Link* link, std::string reason);
  void ReportFailedWrites(std::vector<ControlEvent>* events);
  void DrainForClose(TimePoint deadline);

  UniqueFd epoll_;
  UniqueFd wake_;
  std::mutex mutex_;  // guards the members that Send uses: links, except for their read state, and
                      // failed_writes_
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> by_rank_;
  std::vector<Link*> failed_writes_;
  std::vector<Process> processes_;  // of ranks without a link; no pidfd once the process has ended
  std::vector<char> buffer_;
  std::atomic<int64_t> wakeups_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_TCP_CONTROL_H_
