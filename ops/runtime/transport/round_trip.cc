#include "ops/runtime/transport/round_trip.h"

// As everywhere in this folder, not <netinet/tcp.h>, which excludes it and may lack tcpi_min_rtt.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace tfring {

Duration LeastRoundTrip(int socket) {
  struct tcp_info info{};
  socklen_t size = sizeof(info);
  constexpr size_t kNeeded = offsetof(struct tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < kNeeded) return 0;
  const bool measured = info.tcpi_min_rtt != UINT32_MAX;
  return measured ? Duration{info.tcpi_min_rtt} * kMillisecond / 1000 : 0;
}

}  // namespace tfring
