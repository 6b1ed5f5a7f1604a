#include "ops/gpu/pack/pack_images.h"

#include <elf.h>

#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gpu/pack/pack_batch.h"
#include "tests/cc/test.h"

namespace tfring::testing::pack_images_test {
namespace {

constexpr int kMachineCuda = 190;  // EM_CUDA

#define TFRING_PACK_KERNEL_NAME(name, ...) "tfring_pack_" #name,
const std::vector<std::string> kKernels = {TFRING_PACK_KERNELS(TFRING_PACK_KERNEL_NAME)};
#undef TFRING_PACK_KERNEL_NAME

int Chosen(int capability) {
  static const unsigned char data[1] = {};
  const std::vector<PackImage> images = {{75, data, 1}, {80, data, 1}, {86, data, 1},
                                         {90, data, 1}, {0, data, 1},  {120, data, 1}};
  const PackImage* image = ChoosePackImage(images, capability);
  return image == nullptr ? -1 : image->architecture;
}

TEST(ADeviceLoadsTheHighestBinaryOfItsGeneration) {
  EXPECT_EQ(Chosen(75), 75);
  EXPECT_EQ(Chosen(80), 80);
  EXPECT_EQ(Chosen(86), 86);
  EXPECT_EQ(Chosen(87), 86);
  EXPECT_EQ(Chosen(89), 86);
  EXPECT_EQ(Chosen(90), 90);
  EXPECT_EQ(Chosen(121), 120);
  // Of a generation without one, or older within it.
  EXPECT_EQ(Chosen(70), 0);
  EXPECT_EQ(Chosen(100), 0);
  EXPECT_EQ(Chosen(130), 0);
  EXPECT_EQ(Chosen(61), -1);
  EXPECT_TRUE(ChoosePackImage({}, 90) == nullptr);
}

// The names of the functions in an ELF file for devices; empty if it is none.
std::vector<std::string> FunctionsOf(const PackImage& image, int* architecture) {
  std::vector<std::string> names;
  Elf64_Ehdr header;
  if (image.bytes < sizeof(header)) return names;
  std::memcpy(&header, image.data, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return names;
  if (header.e_machine != kMachineCuda) return names;
  // The architecture is in the lowest byte of the flags, or in the second one in later ABIs.
  const int low = static_cast<int>(header.e_flags & 0xff);
  const int next = static_cast<int>(header.e_flags >> 8 & 0xff);
  *architecture = header.e_ident[EI_ABIVERSION] >= 8 ? next : low;
  for (int s = 0; s < header.e_shnum; ++s) {
    Elf64_Shdr section;
    std::memcpy(&section, image.data + header.e_shoff + s * sizeof(section), sizeof(section));
    if (section.sh_type != SHT_SYMTAB) continue;
    Elf64_Shdr strings;
    std::memcpy(&strings, image.data + header.e_shoff + section.sh_link * sizeof(strings),
                sizeof(strings));
    for (size_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, image.data + section.sh_offset + at, sizeof(symbol));
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0) continue;
      names.push_back(
          reinterpret_cast<const char*>(image.data + strings.sh_offset + symbol.st_name));
    }
  }
  return names;
}

bool Has(const std::vector<std::string>& names, const std::string& name) {
  for (const std::string& other : names) {
    if (other == name) return true;
  }
  return false;
}

TEST(WhatWasBuiltHasEveryKernelForEveryArchitecture) {
  const std::vector<PackImage>& images = BuiltPackImages();
  const std::string binaries = "sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, ";
  EXPECT_EQ(PackImagesText(), (PackBinaries().empty() ? "" : binaries) + "PTX");
  for (const PackImage& image : images) {
    if (image.architecture == 0) {
      const std::string_view text(reinterpret_cast<const char*>(image.data), image.bytes);
      EXPECT_CONTAINS(text, ".target sm_" + std::to_string(kPackPtxArchitecture));
      for (const std::string& name : kKernels) EXPECT_CONTAINS(text, ".entry " + name + "(");
      EXPECT_EQ(text.back(), '\0');  // the driver wants it terminated
      continue;
    }
    int architecture = 0;
    const std::vector<std::string> names = FunctionsOf(image, &architecture);
    EXPECT_EQ(architecture, image.architecture);
    for (const std::string& name : kKernels) EXPECT_TRUE(Has(names, name));
  }
}

}  // namespace
}  // namespace tfring::testing::pack_images_test
