// The steps about the driver, the libraries, the pack kernels and waiting.

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>

#include "ops/runtime/backend/cuda/device_waiter.h"
#include "ops/runtime/backend/nccl/nccl_library.h"
#include "ops/runtime/backend/pack/pack_kernels.h"
#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "tools/gpu_check/steps.h"

namespace tfring::gpu_check {
namespace {

std::unique_ptr<PackKernels> KernelsOf(Gpu* gpu, const Options& options) {
  // The double takes any image: it finds kernels by their names.
  static const unsigned char text[] = "an image for the driver's double";
  const std::vector<PackImage> any = {{0, text, sizeof(text)}};
  auto pinned = std::make_shared<PinnedMemory>(gpu->device(), 16 << 20);
  auto kernels = std::make_unique<PackKernels>(gpu->device(), pinned,
                                               options.doubles ? any : BuiltPackImages());
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
  Require(kernels->Launch(gpu->stream(), items, dtype, dtype, scale));
  Require(gpu->Download(dst, elements * size) == expected, std::string(DataTypeName(dtype)) +
                                                               " times " + std::to_string(factor) +
                                                               ": other bits than the CPU's");
  gpu->Free(src);
  gpu->Free(dst);
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
  report->Add("name", gpu.device()->name());
  report->Add("uuid", gpu.device()->uuid());
  report->Add("capability", gpu.device()->compute_capability());
  report->Add("multiprocessors", gpu.device()->multiprocessors());
  report->Add("pack_kernels", PackImagesText());
  const PackImage* image = ChoosePackImage(BuiltPackImages(), gpu.device()->compute_capability());
  report->Add("pack_image", image == nullptr ? -1 : image->architecture);
}

void LoadLibrary(const Options& options, Report* report) {
  const auto library = Require(LoadNccl(options.nccl));
  report->Add("version", NcclVersionText(library->version));
  report->Add("path", library->path);
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
  const int64_t total = options.doubles ? 1 << 20 : 256 << 20;
  const int times = options.doubles ? 2 : 20;
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
        const double seconds = gpu.TimeOf(times, [&] {
          Require(kernels->Launch(gpu.stream(), items, dtype, dtype, Scale{factor, 1}));
        });
        const double bytes = static_cast<double>(2 * count * elements * DataTypeSize(dtype));
        const std::string name = std::string(DataTypeName(dtype)) + "_x" +
                                 std::to_string(factor).substr(0, 4) + "_" + std::to_string(count);
        report->Add(name + "_of_copy", bytes / seconds / (static_cast<double>(2 * total) / copy));
      }
    }
  }
}

void Latency(const Options& options, Report* report) {
  Gpu gpu(options, 0);
  char* memory = gpu.Allocate(1 << 20);
  const auto work = [&] {
    gpu.Check(
        gpu.cu().MemsetD8Async(reinterpret_cast<CuDevicePtr>(memory), 1, 1 << 20, gpu.stream()),
        "setting memory");
  };
  const int times = options.doubles ? 20 : 500;
  work();
  gpu.Wait();
  std::vector<double> polled, waited;
  for (int i = 0; i < times; ++i) {
    const double start = Seconds();
    work();
    gpu.Wait();
    polled.push_back(Seconds() - start);
  }
  std::mutex mutex;
  std::condition_variable changed;
  DeviceWaiter waiter(gpu.device());
  for (int i = 0; i < times; ++i) {
    const double start = Seconds();
    work();
    bool done = false;
    waiter.After(gpu.stream(), [&](const DeviceOutcome& outcome) {
      std::lock_guard<std::mutex> lock(mutex);
      done = outcome.status.ok();
      changed.notify_one();
    });
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done; });
    waited.push_back(Seconds() - start);
  }
  for (std::vector<double>* times_of : {&polled, &waited}) {
    std::sort(times_of->begin(), times_of->end());
    const std::string name = times_of == &polled ? "spinning" : "waiter";
    report->Add(name + "_us", times_of->at(times_of->size() / 2) * 1e6);
    report->Add(name + "_us_95", times_of->at(times_of->size() * 95 / 100) * 1e6);
  }
}

}  // namespace tfring::gpu_check
