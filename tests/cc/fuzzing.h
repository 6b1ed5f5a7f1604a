#ifndef TFRING_TESTS_CC_FUZZING_H_
#define TFRING_TESTS_CC_FUZZING_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

// Feeds mutated messages to decoders. Checked: no crash, no allocation beyond a small multiple of
// the input, and whatever is accepted encodes to the same bytes again. A program includes this
// once: it replaces the operators new and delete.

namespace tfring::testing {

inline size_t allocated = 0;  // by this thread alone: a fuzzer has no other
inline bool counting = false;

}  // namespace tfring::testing

// Not inlined: a compiler that sees the free() below would miss the matching new.
[[gnu::noinline]] void* operator new(size_t size) {
  if (tfring::testing::counting) tfring::testing::allocated += size;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tfring::testing {

template <typename Decode, typename Encode>
void TryDecoder(const std::string& bytes, Decode decode, Encode encode) {
  allocated = 0;
  counting = true;
  const auto message = decode(bytes);
  counting = false;
  if (allocated > 64 * bytes.size() + 4096) {
    std::fprintf(stderr, "%zu bytes of input made the decoder allocate %zu\n", bytes.size(),
                 allocated);
    std::abort();
  }
  if (message.ok() && encode(*message) != bytes) {
    std::fprintf(stderr, "an accepted message encodes to other bytes\n");
    std::abort();
  }
}

inline std::string Mutate(std::string bytes, std::mt19937_64* rng) {
  const auto below = [rng](size_t limit) { return limit == 0 ? 0 : (*rng)() % limit; };
  const std::string interesting("\x00\x01\x02\x7f\x80\xfe\xff\x0f", 8);
  for (size_t i = 0, count = 1 + below(6); i < count; ++i) {
    const size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>((*rng)());
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = interesting[below(interesting.size())];
        break;
      case 2:
        if (!bytes.empty()) bytes[at] ^= static_cast<char>(1 << below(8));
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(at, below(4) == 0 ? below(4096) : below(9),
                     interesting[below(interesting.size())]);
        break;
      case 5:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(64)));
        break;
      default:
        bytes.erase(at, below(8));
    }
  }
  return bytes;
}

// A fuzzer's main: mutates `corpus`, and what is accepted of what comes out, for as many seconds as
// the first argument says (2 without one), from the seed in the second one (1 without one).
inline int Fuzz(int argc, char** argv, std::vector<std::string> corpus,
                const std::function<void(const std::string&)>& try_bytes,
                const std::function<bool(const std::string&)>& accepts) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::mt19937_64 rng(seed);
  const size_t seeds = corpus.size();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t runs = 0;
  uint64_t accepted = 0;
  for (const std::string& bytes : corpus) {
    if (!accepts(bytes)) return EXIT_FAILURE;
    try_bytes(bytes);
  }
  // At least a few thousand, however slow the machine.
  while (runs < 5000 || std::chrono::steady_clock::now() < end) {
    const std::string bytes = Mutate(corpus[rng() % corpus.size()], &rng);
    try_bytes(bytes);
    ++runs;
    if (!accepts(bytes)) continue;
    ++accepted;
    // What is accepted leads further than what is refused.
    if (corpus.size() < 512) {
      corpus.push_back(bytes);
    } else {
      corpus[seeds + rng() % (corpus.size() - seeds)] = bytes;
    }
  }
  std::printf("%llu inputs, %llu accepted, seed %llu\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(seed));
  return accepted > 0 && accepted < runs ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_FUZZING_H_
