#include "ops/gpu/pack/pack_images.h"

namespace tfring {
namespace {

constexpr char kPtx[] =
#include "ops/gpu/pack/pack_kernels.ptx.inc"
    ;

}  // namespace

const std::vector<PackImage>& BuiltPackImages() {
  static const std::vector<PackImage> images = [] {
    std::vector<PackImage> made = PackBinaries();
    // Includes the final zero, which the driver needs.
    made.push_back({0, reinterpret_cast<const unsigned char*>(kPtx), sizeof(kPtx)});
    return made;
  }();
  return images;
}

std::string PackImagesText() {
  std::string text;
  for (const PackImage& image : BuiltPackImages()) {
    if (!text.empty()) text += ", ";
    text += image.architecture == 0 ? "PTX" : "sm_" + std::to_string(image.architecture);
  }
  return text;
}

const PackImage* ChoosePackImage(const std::vector<PackImage>& images, int capability) {
  const PackImage* best = nullptr;
  for (const PackImage& image : images) {
    if (image.architecture == 0) {
      if (best == nullptr && capability >= kPackPtxArchitecture) best = &image;
    } else if (image.architecture / 10 == capability / 10 && image.architecture <= capability) {
      if (best == nullptr || image.architecture > best->architecture) best = &image;
    }
  }
  return best;
}

}  // namespace tfring
