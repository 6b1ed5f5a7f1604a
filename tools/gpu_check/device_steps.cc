// The steps about the driver, the libraries and the pack kernels.

#include <cstring>
#include <random>

#include "ops/gpu/nccl/nccl_library.h"
#include "ops/gpu/pack/pack_kernels.h"
#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "tools/gpu_check/steps.h"

namespace tfring::gpu_check {
namespace {

std::unique_ptr<PackKernels> KernelsOf(Gpu* gpu, const Options& options) {
  // The fake takes any image: it finds kernels by their names.
  static const unsigned char text[] = "an image for the fake driver";
  const std::vector<PackImage> any = {{0, text, sizeof(text)}};
  auto pinned = std::make_shared<PinnedMemory>(gpu->device(), 16 << 20);
  auto kernels =
      std::make_unique<PackKernels>(gpu->device(), pinned, options.fakes ? any : BuiltPackImages());
  Require(kernels->status());
  return kernels;
}

// `count` tensors of `elements` each, one after the other in both.
std::vector<PackItem> Items(char* src, char* dst, int count, int64_t elements, int64_t bytes) {
  std::vector<PackItem> items;
  for (int i = 0; i < count; ++i) {
    items.push_back({src + i * elements * bytes, dst + i * elements * bytes, elements});
  }
  return items;
}

void CheckBits(Gpu* gpu, PackKernels* kernels, DataType dtype, double factor, int src_offset) {
  std::mt19937 random(3);
  const int64_t size = DataTypeSize(dtype);
  const int64_t elements = 100003;
  std::vector<char> in(static_cast<size_t>(elements * size));
  for (char& byte : in) byte = static_cast<char>(random());
  std::vector<char> expected = in;
  const Scale scale{factor, 1};
  if (!scale.identity()) {
    FindReduceKernels(dtype)->scale(expected.data(), in.data(), elements, scale);
  }
  char* src = gpu->Allocate(elements * size + 16);
  char* dst = gpu->Allocate(elements * size + 16);
  gpu->Upload(src + src_offset, in);
  // Tensors of 1, 2, ... elements, then the rest: more than fit into a kernel's parameters.
  std::vector<PackItem> items;
  int64_t at = 0;
  for (int64_t n = 1; at < elements; ++n) {
    const int64_t next = n > 300 ? elements - at : n;
    items.push_back({src + src_offset + at * size, dst + at * size, next});
    at += next;
  }
  Require(kernels->Launch(gpu->stream(), items, dtype, scale));
  Require(gpu->Download(dst, elements * size) == expected, std::string(DataTypeName(dtype)) +
                                                               " times " + std::to_string(factor) +
                                                               ": other bits than the CPU's");
  gpu->Free(src);
  gpu->Free(dst);
}

// Whether a GPU reads and writes the memory of another one directly.
bool CanAccess(Gpu* gpu, int ordinal, int peer_ordinal) {
  CuDevice device = 0, peer = 0;
  gpu->Check(gpu->cu().DeviceGet(&device, ordinal), "opening a GPU");
  gpu->Check(gpu->cu().DeviceGet(&peer, peer_ordinal), "opening a GPU");
  int can = 0;
  gpu->Check(gpu->more().DeviceCanAccessPeer(&can, device, peer), "asking for peer access");
  return can != 0;
}

}  // namespace

void Facts(const Options& options, Report* report) {
  const int count = Gpu::Count(options);
  report->Add("gpus", count);
  Require(count > 0, "there is no GPU");
  Gpu gpu(options, 0);
  int version = 0;
  gpu.Check(gpu.cu().DriverGetVersion(&version), "asking for the version");
  report->Add("driver_cuda", version);
  std::string peers;
  for (int i = 0; i < count; ++i) {
    const Gpu one(options, i);
    const std::string suffix = i == 0 ? "" : "_" + std::to_string(i);
    report->Add("name" + suffix, one.device()->name());
    report->Add("uuid" + suffix, one.device()->uuid());
    for (int peer = 0; peer < count; ++peer) {
      if (peer != i && CanAccess(&gpu, i, peer)) {
        peers += (peers.empty() ? "" : ", ") + std::to_string(i) + " to " + std::to_string(peer);
      }
    }
  }
  report->Add("peer_access", peers.empty() ? "none" : peers);
  size_t bytes = 0;
  gpu.Check(gpu.more().DeviceTotalMem(&bytes, gpu.device()->ordinal()), "asking for the memory");
  report->Add("memory_gib", static_cast<double>(bytes) / (1 << 30));
  report->Add("capability", gpu.device()->compute_capability());
  report->Add("multiprocessors", gpu.device()->multiprocessors());
  report->Add("pack_kernels", PackImagesText());
  const PackImage* image = ChoosePackImage(BuiltPackImages(), gpu.device()->compute_capability());
  report->Add("pack_image", image == nullptr ? -1 : image->architecture);
  const auto nccl = LoadNccl(options.nccl);
  report->Add("nccl", nccl.ok() ? NcclVersionText((*nccl)->version) + " in " + (*nccl)->path
                                : "none: " + nccl.status().message());
}

void PackBits(const Options& options, Report* report) {
  Gpu gpu(options, 0);
  const auto kernels = KernelsOf(&gpu, options);
  int cases = 0;
  for (DataType dtype :
       {DataType::kInt8, DataType::kUint8, DataType::kInt32, DataType::kInt64, DataType::kFloat16,
        DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (double factor : {1.0, 0.5, 1.0 / 3.0, -0.0}) {
      for (int offset : {0, 1, 4, 8}) {
        CheckBits(&gpu, kernels.get(), dtype, factor, offset);
        ++cases;
      }
    }
  }
  report->Add("cases", cases);
}

void PackSpeed(const Options& options, Report* report) {
  Gpu gpu(options, 0);
  const auto kernels = KernelsOf(&gpu, options);
  const int64_t total = options.fakes ? 1 << 20 : 256 << 20;
  const int times = options.fakes ? 2 : 20;
  char* src = gpu.Allocate(total);
  char* dst = gpu.Allocate(total);
  gpu.Upload(src, std::vector<char>(static_cast<size_t>(total)));
  const double copy = gpu.TimeOf(times, [&] {
    gpu.Check(gpu.cu().MemcpyDtoDAsync(reinterpret_cast<CuDevicePtr>(dst),
                                       reinterpret_cast<CuDevicePtr>(src),
                                       static_cast<size_t>(total), gpu.stream()),
              "copying");
  });
  report->Add("copy_gb_per_s", static_cast<double>(2 * total) / copy / 1e9);
  for (DataType dtype : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    for (double factor : {1.0, 0.5, 1.0 / 3.0}) {
      for (int count : {1, 300, 3000}) {
        const int64_t elements = total / DataTypeSize(dtype) / count / 64 * 64;
        const auto items = Items(src, dst, count, elements, DataTypeSize(dtype));
        const double seconds = gpu.TimeOf(
            times, [&] { Require(kernels->Launch(gpu.stream(), items, dtype, Scale{factor, 1})); });
        const double bytes = static_cast<double>(2 * count * elements * DataTypeSize(dtype));
        const std::string name = std::string(DataTypeName(dtype)) + "_x" +
                                 std::to_string(factor).substr(0, 4) + "_" + std::to_string(count);
        report->Add(name + "_of_copy", bytes / seconds / (static_cast<double>(2 * total) / copy));
      }
    }
  }
}

}  // namespace tfring::gpu_check
