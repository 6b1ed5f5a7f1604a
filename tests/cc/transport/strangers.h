#ifndef TFRING_TESTS_CC_TRANSPORT_STRANGERS_H_
#define TFRING_TESTS_CC_TRANSPORT_STRANGERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"

namespace tfring {

inline const std::string kKey(32, 'k');

struct Listening {
  UniqueFd socket;
  int port = 0;
};

inline Listening Listen() {
  Listening made{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(made.socket.get(), any, length), 0);
  EXPECT_EQ(listen(made.socket.get(), 64), 0);
  EXPECT_EQ(getsockname(made.socket.get(), any, &length), 0);
  made.port = ntohs(address.sin_port);
  return made;
}

// Ranks without any connection, which connect when they first use a stream.
struct Strangers {
  explicit Strangers(int size, std::vector<std::string> keys = {}, Duration limit = 60 * kSecond,
                     size_t strangers = 256) {
    keys.resize(static_cast<size_t>(size), kKey);
    std::vector<Listening> listening;
    std::vector<std::pair<std::string, int>> endpoints;
    for (int r = 0; r < size; ++r) {
      listening.push_back(Listen());
      endpoints.emplace_back("127.0.0.1", listening.back().port);
    }
    for (int r = 0; r < size; ++r) {
      PeerAddresses addresses{r,        std::move(listening[r].socket), endpoints, keys[r], limit,
                              strangers};
      auto connector = PeerConnector::Create(std::move(addresses));
      EXPECT_TRUE(connector.ok());
      auto made = TcpDataTransport::Create({}, 5 * kSecond, std::move(*connector));
      EXPECT_TRUE(made.ok());
      ranks.push_back(std::move(*made));
      ports.push_back(endpoints[r].second);
    }
  }
  std::vector<std::unique_ptr<DataTransport>> ranks;
  std::vector<int> ports;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_STRANGERS_H_
