#include "tests/cc/transport/shared_host.h"

#include <map>
#include <thread>
#include <tuple>

#include "tests/cc/transport/fixture.h"

namespace tfring {

std::vector<std::unique_ptr<DataTransport>> SharedHost(int size, std::pair<Rank, Rank> separate) {
  std::vector<std::map<Rank, int>> sockets(size);
  for (Rank a = 0; a < size; ++a) {
    for (Rank b = a + 1; b < size; ++b) {
      std::tie(sockets[a][b], sockets[b][a]) = ConnectedSockets(Link::kUnix);
    }
  }
  std::vector<std::unique_ptr<DataTransport>> made(size);
  std::vector<std::thread> threads;
  for (Rank self = 0; self < size; ++self) {
    threads.emplace_back([&, self] {
      std::vector<ShmPeer> peers;
      for (auto [rank, fd] : sockets[self]) {
        const bool apart = separate.first != separate.second &&
                           ((self == separate.first && rank == separate.second) ||
                            (self == separate.second && rank == separate.first));
        if (!apart) peers.push_back({rank, fd});
      }
      auto transport = ShmDataTransport::Connect(ShmUse::kWherePossible, peers,
                                                 DataOver(sockets[self]), In(20 * kSecond), self);
      if (transport.ok()) made[self] = std::move(*transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return made;
}

}  // namespace tfring
