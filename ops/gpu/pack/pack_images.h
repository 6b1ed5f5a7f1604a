#ifndef TFRING_OPS_GPU_PACK_PACK_IMAGES_H_
#define TFRING_OPS_GPU_PACK_PACK_IMAGES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"

namespace tfring {

// The pack kernels as the device's compiler left them: a binary for one architecture, or PTX, which
// the driver compiles for architectures that come later.
struct PackImage {
  int architecture = 0;  // 90: a binary for sm_90; 0: PTX, for kPackPtxArchitecture and later
  const unsigned char* data = nullptr;
  size_t bytes = 0;
};

inline constexpr int kPackPtxArchitecture = 70;

// The binaries that were compiled when tfring was built; none but in wheels.
std::vector<PackImage> PackBinaries();

// These binaries and PTX.
const std::vector<PackImage>& BuiltPackImages();

// "sm_70, sm_75, PTX" or "PTX".
TFRING_EXPORT std::string PackImagesText();

// What a device of this compute capability (90: sm_90) should load: the binary of the highest
// architecture of its generation that is not beyond it, else PTX, else null.
const PackImage* ChoosePackImage(const std::vector<PackImage>& images, int capability);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_PACK_PACK_IMAGES_H_
