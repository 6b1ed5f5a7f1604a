#ifndef TFRING_OPS_GPU_PACK_PACK_IMAGES_H_
#define TFRING_OPS_GPU_PACK_PACK_IMAGES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"

namespace tfring {

// A compiled form of the pack kernels: a binary for one architecture, or PTX, which the driver
// compiles for later architectures.
struct PackImage {
  int architecture = 0;  // 90: a binary for sm_90; 0: PTX, for kPackPtxArchitecture and later
  const unsigned char* data = nullptr;
  size_t bytes = 0;
};

inline constexpr int kPackPtxArchitecture = 70;

// Returns the binaries that were compiled with tfring; only wheels have any.
std::vector<PackImage> PackBinaries();

// Returns these binaries and PTX.
const std::vector<PackImage>& BuiltPackImages();

// "sm_70, sm_75, PTX" or "PTX".
TFRING_EXPORT std::string PackImagesText();

// Returns the image that a device with this compute capability (90: sm_90) should load: the binary
// for the highest architecture of its generation up to the capability, else PTX, else null.
const PackImage* ChoosePackImage(const std::vector<PackImage>& images, int capability);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_PACK_PACK_IMAGES_H_
