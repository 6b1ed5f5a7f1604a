#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_LIMITS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_LIMITS_H_

#include <cstddef>

#include "ops/runtime/base/types.h"

namespace tfring {

// A rank whose data connection broke waits this long for rank 0 to say which rank was lost.
inline constexpr Duration kFaultGrace = 300 * kMillisecond;
// Rank 0 waits this long for other signs. Shorter, so that its decision arrives within kFaultGrace.
inline constexpr Duration kSequencerGrace = 150 * kMillisecond;
// The same for a plan that broke on a device, where a rank cannot see which peer is to blame. A
// process that ends gives its devices back before its connections close.
inline constexpr Duration kUnknownGrace = 2 * kSecond;
// A goodbye may arrive this long after the end of its process.
inline constexpr Duration kGoodbyeGrace = 500 * kMillisecond;
// A Step that comes this much later than the Engine asked for was held up: the process was stopped,
// or the machine did not run it.
inline constexpr Duration kHeldUp = 500 * kMillisecond;
// After a shutdown, plans may run this long without moving data, and a rank that leaves waits this
// long for rank 0's answer to its goodbye.
inline constexpr Duration kDrainLimit = 2 * kSecond;
// Rank 0 passes the first goodbye on at once, and those of this time together: at the end of a job
// all ranks leave, and no rank has to know of all others. Shorter than kGoodbyeGrace.
inline constexpr Duration kGoodbyePause = 50 * kMillisecond;
// This many goodbyes of a frame keep their texts. Without a limit a thousand ranks that all end
// with an exception would be busy with them.
inline constexpr size_t kErrorsPassedOn = 4;
// Rank 0, when it has left, plans this long for process sets without it.
inline constexpr Duration kSequencerStays = 30 * kSecond;

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_LIMITS_H_
