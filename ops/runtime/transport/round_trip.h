#ifndef TFRING_OPS_RUNTIME_TRANSPORT_ROUND_TRIP_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_ROUND_TRIP_H_

#include "ops/runtime/base/types.h"

namespace tfring {

// The least time that the kernel has measured of late from this end of a TCP connection to the
// other one and back; 0 if it has not, or the socket is not TCP.
Duration LeastRoundTrip(int socket);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_ROUND_TRIP_H_
