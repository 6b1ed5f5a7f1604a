#include "ops/gpu/nccl/meeting.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "ops/gpu/nccl/nccl_library.h"

namespace tfring {
namespace {

std::string RankText(Rank rank) { return "rank " + std::to_string(rank); }

std::string HostText(const MeetingRecord& record) {
  return record.host[0] == '\0' ? "" : std::string(" of host ") + record.host;
}

std::string SharedGpu(const std::vector<MeetingRecord>& records, const std::vector<Rank>& members) {
  const auto shares = [](const MeetingRecord& record) { return record.shares_gpu != 0; };
  if (std::all_of(records.begin(), records.end(), shares)) return "";
  std::map<std::string, Rank> owners;
  for (size_t m = 0; m < records.size(); ++m) {
    const auto [it, first] = owners.emplace(records[m].device, members[m]);
    if (first) continue;
    return "ranks " + std::to_string(it->second) + " and " + std::to_string(members[m]) +
           " use the same GPU, " + it->first + HostText(records[m]) +
           "; give each rank its own, before it uses a GPU: "
           "tf.config.set_visible_devices(tf.config.list_physical_devices('GPU')"
           "[hvd.local_rank()], 'GPU')";
  }
  return "";
}

// Before 2.30 NCCL takes GPUs of one machine with one bus id for one GPU, whatever their UUIDs.
std::string SharedCard(const std::vector<MeetingRecord>& records,
                       const std::vector<Rank>& members) {
  if (records[0].version >= kFirstToShareGpus) return "";
  std::map<std::pair<std::string, std::string>, Rank> owners;
  for (size_t m = 0; m < records.size(); ++m) {
    const MeetingRecord& record = records[m];
    const std::string bus = record.bus;
    if (bus.empty()) continue;
    const auto [it, first] = owners.emplace(std::pair(record.machine, bus), members[m]);
    if (first) continue;
    return "ranks " + std::to_string(it->second) + " and " + std::to_string(members[m]) +
           " use one card" + HostText(record) + ", PCI bus id " + bus +
           (record.mig != 0 ? ", by MIG instances" : "") + "; NCCL " +
           NcclVersionText(record.version) +
           " takes them for one GPU. Install NCCL 2.30 or newer on all ranks, or give each rank a "
           "card of its own";
  }
  return "";
}

std::string FindObstacle(const std::vector<MeetingRecord>& records,
                         const std::vector<Rank>& members) {
  for (const uint8_t followed : {0, 1}) {
    for (size_t m = 0; m < records.size(); ++m) {
      if (records[m].version != 0 || records[m].followed != followed) continue;
      return RankText(members[m]) + ": " + records[m].reason;
    }
  }
  for (size_t m = 1; m < records.size(); ++m) {
    if (records[m].version == records[0].version) continue;
    return RankText(members[0]) + " has NCCL " + NcclVersionText(records[0].version) + " and " +
           RankText(members[m]) + " has NCCL " + NcclVersionText(records[m].version) +
           "; install the same version everywhere";
  }
  for (const auto& find : {SharedGpu, SharedCard}) {
    const std::string shared = find(records, members);
    if (!shared.empty()) return shared;
  }
  if (records[0].has_id == 0) return RankText(members[0]) + ": " + records[0].reason;
  return "";
}

}  // namespace

void SetReason(const std::string& text, MeetingRecord* record) {
  const size_t length = std::min(text.size(), sizeof(record->reason) - 1);
  std::memcpy(record->reason, text.data(), length);
  record->reason[length] = '\0';
}

MeetingResult Conclude(const std::vector<MeetingRecord>& records,
                       const std::vector<Rank>& members) {
  MeetingResult result;
  result.abilities.packs = true;
  std::map<std::string, int> machines;
  for (const MeetingRecord& record : records) {
    result.abilities.packs = result.abilities.packs && record.packs != 0;
    result.insists = result.insists || record.insists != 0;
    result.of_a_machine = std::max(result.of_a_machine, ++machines[record.machine]);
  }
  result.reason = FindObstacle(records, members);
  result.uses_nccl = result.reason.empty();
  result.id = records[0].id;
  return result;
}

}  // namespace tfring
