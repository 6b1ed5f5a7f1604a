#include "ops/gpu/pack/pack_kernels.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/gpu/cuda/kept_memory.h"

namespace tfring {
namespace {

constexpr const char* kPrefix = "tfring_pack_";

#define TFRING_PACK_KERNEL_NAME(name, ...) #name,
constexpr const char* kNames[] = {TFRING_PACK_KERNELS(TFRING_PACK_KERNEL_NAME)};
#undef TFRING_PACK_KERNEL_NAME

const char* ShortName(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return "i8";
    case DataType::kUint8:
      return "u8";
    case DataType::kInt32:
      return "i32";
    case DataType::kInt64:
      return "i64";
    case DataType::kFloat16:
      return "f16";
    case DataType::kBfloat16:
      return "bf16";
    case DataType::kFloat32:
      return "f32";
    case DataType::kFloat64:
      return "f64";
    default:
      return "";
  }
}

// Makes entries of the items with elements, each with its first block; counts bytes if the kernel
// copies. Returns the number of blocks.
Result<uint32_t> MakeEntries(const std::vector<PackItem>& items, int64_t unit,
                             int64_t elements_per_block, std::vector<PackEntry>* entries) {
  entries->reserve(items.size());
  int64_t blocks = 0;
  for (const PackItem& item : items) {
    if (item.elements <= 0) continue;
    const int64_t elements = item.elements * unit;
    const uint32_t first = static_cast<uint32_t>(blocks);
    entries->push_back({item.src, item.dst, elements, first, 0});
    blocks += (elements + elements_per_block - 1) / elements_per_block;
    if (blocks > INT32_MAX) {  // the most blocks of a launch; 32 TiB
      return InvalidArgument("packing " + std::to_string(items.size()) +
                             " tensors: more memory than a GPU can have");
    }
  }
  return static_cast<uint32_t>(blocks);
}

}  // namespace

PackKernels::PackKernels(std::shared_ptr<CudaDevice> device, std::shared_ptr<PinnedMemory> pinned,
                         const std::vector<PackImage>& images)
    : device_(std::move(device)), pinned_(std::move(pinned)) {
  status_ = Load(images);
  if (!status_.ok()) functions_.clear();
}

PackKernels::~PackKernels() {
  const ScopedContext context(device_.get());
  DropUsedTables();
  for (Table& table : tables_) {
    KeepForever(std::move(table.pinned));
    KeepForever(std::move(table.memory));
  }
  // Unload only if the device no longer runs the kernels.
  if (module_ != nullptr && tables_.empty() && context.status().ok()) {
    (void)device_->Check(device_->cu().ModuleUnload(module_), "unloading the pack kernels");
  }
}

Status PackKernels::Load(const std::vector<PackImage>& images) {
  const int capability = device_->compute_capability();
  const PackImage* image = ChoosePackImage(images, capability);
  if (image == nullptr) {
    return Unimplemented("tfring has no pack kernels for " + device_->name() + " (sm_" +
                         std::to_string(capability) + ")");
  }
  const ScopedContext context(device_.get());
  TFRING_RETURN_IF_ERROR(context.status());
  const CudaFunctions& cu = device_->cu();
  TFRING_RETURN_IF_ERROR(
      device_->Check(cu.ModuleLoadData(&module_, image->data), "loading the pack kernels"));
  for (const char* name : kNames) {
    const std::string full = std::string(kPrefix) + name;
    TFRING_RETURN_IF_ERROR(
        device_->Check(cu.ModuleGetFunction(&functions_[name], module_, full.c_str()),
                       "looking for a pack kernel"));
  }
  return OkStatus();
}

Status PackKernels::Launch(CuStream stream, const std::vector<PackItem>& items, DataType dtype,
                           const Scale& scale) {
  const bool copies = scale.identity();
  const auto function = functions_.find(copies ? "copy" : ShortName(dtype));
  if (function == functions_.end() && !copies) {
    return Unimplemented(std::string("no pack kernel scales ") + DataTypeName(dtype) +
                         (status_.ok() ? "" : ": " + status_.message()));
  }
  const ScopedContext context(device_.get());
  TFRING_RETURN_IF_ERROR(context.status());
  if (function == functions_.end()) return CopyEach(stream, items, DataTypeSize(dtype));
  const int64_t width = DataTypeSize(dtype);
  std::vector<PackEntry> entries;
  const Result<uint32_t> blocks =
      MakeEntries(items, copies ? width : 1, kPackBlockBytes / (copies ? 1 : width), &entries);
  TFRING_RETURN_IF_ERROR(blocks.status());
  if (entries.empty()) return OkStatus();
  PackBatch batch = {};
  batch.factor = scale.factor;
  batch.divisor = scale.divisor;
  batch.narrow = static_cast<float>(scale.factor);
  batch.exact = static_cast<double>(batch.narrow) == scale.factor ? 1 : 0;
  return LaunchKernel(stream, function->second, entries, blocks.value(), &batch);
}

Status PackKernels::CopyEach(CuStream stream, const std::vector<PackItem>& items,
                             int64_t element_bytes) {
  for (const PackItem& item : items) {
    if (item.elements <= 0 || item.src == item.dst) continue;
    TFRING_RETURN_IF_ERROR(device_->Check(
        device_->cu().MemcpyDtoDAsync(reinterpret_cast<CuDevicePtr>(item.dst),
                                      reinterpret_cast<CuDevicePtr>(item.src),
                                      static_cast<size_t>(item.elements * element_bytes), stream),
        "copying a tensor within the GPU"));
  }
  return OkStatus();
}

Status PackKernels::LaunchKernel(CuStream stream, CuFunction function,
                                 const std::vector<PackEntry>& entries, uint32_t blocks,
                                 PackBatch* batch) {
  batch->count = static_cast<uint32_t>(entries.size());
  Table* table = nullptr;
  if (entries.size() <= kPackInlineEntries) {
    std::copy(entries.begin(), entries.end(), batch->entries);
  } else {
    DropUsedTables();
    Result<Table> sent = SendTable(stream, entries);
    TFRING_RETURN_IF_ERROR(sent.status());
    tables_.push_back(std::move(*sent));
    table = &tables_.back();
    batch->table = static_cast<const PackEntry*>(table->memory.get());
  }
  void* parameters[] = {batch};
  const CuResult launched = device_->cu().LaunchKernel(function, blocks, 1, 1, kPackThreads, 1, 1,
                                                       0, stream, parameters, nullptr);
  const Status status = device_->Check(launched, "launching a pack kernel");
  if (table == nullptr) return status;
  Result<std::shared_ptr<CudaEvent>> used = device_->Record(stream);
  if (used.ok()) table->used = std::move(*used);
  return status.ok() ? used.status() : status;
}

Result<PackKernels::Table> PackKernels::SendTable(CuStream stream,
                                                  const std::vector<PackEntry>& entries) {
  const int64_t bytes = static_cast<int64_t>(entries.size() * sizeof(PackEntry));
  Result<std::shared_ptr<void>> pinned = pinned_->Take(bytes);
  TFRING_RETURN_IF_ERROR(pinned.status());
  Result<std::shared_ptr<void>> memory = device_->Scratch(bytes);
  TFRING_RETURN_IF_ERROR(memory.status());
  std::memcpy(pinned->get(), entries.data(), static_cast<size_t>(bytes));
  TFRING_RETURN_IF_ERROR(device_->Check(
      device_->cu().MemcpyHtoDAsync(reinterpret_cast<CuDevicePtr>(memory->get()), pinned->get(),
                                    static_cast<size_t>(bytes), stream),
      "copying the table of a batch to the GPU"));
  return Table{nullptr, std::move(*pinned), std::move(*memory)};
}

void PackKernels::DropUsedTables() {
  // A table without an event follows an error of the device: keep it.
  const auto used = [this](const Table& table) {
    return table.used != nullptr && device_->cu().EventQuery(table.used->get()) == kCudaSuccess;
  };
  while (!tables_.empty() && used(tables_.front())) tables_.pop_front();
}

}  // namespace tfring
