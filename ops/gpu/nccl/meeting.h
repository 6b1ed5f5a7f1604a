#ifndef TFRING_OPS_GPU_NCCL_MEETING_H_
#define TFRING_OPS_GPU_NCCL_MEETING_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/gpu/nccl/nccl_api.h"
#include "ops/gpu/nccl/nccl_program.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// The record that each member sends to the others over the CPU backend before they make a
// communicator, and again afterwards. Sent as raw memory: all ranks run the same build.
struct MeetingRecord {
  int32_t version = 0;     // of NCCL; 0: this rank cannot use it
  uint8_t packs = 0;       // see NcclAbilities
  uint8_t insists = 0;     // TFRING_GPU_OPERATIONS=nccl: no NCCL is an error
  uint8_t has_id = 0;      // used only from the first member
  uint8_t shares_gpu = 0;  // see NcclLibrary
  uint8_t followed = 0;    // version is 0 because another member failed or did not come
  uint8_t mig = 0;         // the GPU is an instance of a card
  char device[48] = {};    // UUID of the GPU, as text
  char bus[16] = {};       // PCI bus id of its card, as text
  char machine[128] = {};  // NCCL's identification of the machine
  char host[64] = {};      // name of the host, cut to fit
  char reason[1024] = {};  // why version is 0 or there is no id
  NcclUniqueId id = {};
};
static_assert(std::is_trivially_copyable_v<MeetingRecord>);

// Sets `reason`, cut to fit.
void SetReason(const std::string& text, MeetingRecord* record);

// The conclusion of the members. Each member concludes by itself, and all reach the same result.
struct MeetingResult {
  bool uses_nccl = false;
  NcclAbilities abilities;
  NcclUniqueId id = {};
  int of_a_machine = 0;  // most members on one machine
  std::string reason;    // why NCCL is not used
  bool insists = false;  // then no NCCL is an error; else the collectives are staged
};

// `records` in the order of `members`.
TFRING_EXPORT MeetingResult Conclude(const std::vector<MeetingRecord>& records,
                                     const std::vector<Rank>& members);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_MEETING_H_
