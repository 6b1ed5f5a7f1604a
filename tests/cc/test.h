#ifndef TFRING_TESTS_CC_TEST_H_
#define TFRING_TESTS_CC_TEST_H_

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// A test runner of one page (docs/adr/0004 says why it is our own). Write
// TEST(name) { EXPECT_EQ(a, b); }. Every program has the same main, in test_main.cc. A program has
// the cases of many files, which the compiler sees as one: each file has a namespace of its own.
// What the macros expand to is compiled hundreds of times, so most of it is in test.cc.

namespace tfring::testing {

struct Case {
  std::string
      name;  // "thread_pool/thread_pool_test.Name": the file below tests/cc, and the name there
  void (*body)();
};

struct Registrar {
  Registrar(const char* file, const char* name, void (*body)());
};

// Failed checks so far.
int Failures();

// Sanitizers make a program ten times slower, and look for the same faults in each case of a sweep.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How many seeds or steps a sweep has: with sanitizers a quarter.
constexpr int Sweep(int times) { return kSanitized ? (times + 3) / 4 : times; }

// The cases of a sweep: with sanitizers about one in four, from everywhere among them.
template <typename T>
std::vector<T> Sweep(std::vector<T> cases) {
  if (!kSanitized) return cases;
  std::vector<T> some;
  for (size_t i = 0; i < cases.size(); ++i) {
    if ((i * 2654435761u >> 8) % 4 == 0) some.push_back(std::move(cases[i]));
  }
  return some;
}

void Fail(const char* file, int line, const std::string& what);

template <typename T, typename = void>
struct Printable : std::false_type {};
template <typename T>
struct Printable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<T>())>>
    : std::true_type {};

template <typename T>
void Print(std::ostream& out, const void* value) {
  if constexpr (Printable<T>::value) {
    out << *static_cast<const T*>(value);
  } else {
    out << "(a value of " << sizeof(T) << " bytes)";
  }
}

// A value of any type for a message.
struct Shown {
  const void* value;
  void (*print)(std::ostream& out, const void* value);
};

// Runs the cases whose names contain argv[1]; with --list prints all names. Without an argument
// runs all, each file in a process of its own.
int Main(int argc, char** argv);

void FailEq(const Shown& a, const Shown& b, const char* text, const char* file, int line);
void CheckContains(std::string_view text, std::string_view part, const char* file, int line);

template <typename A, typename B>
bool CheckEq(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return true;
  FailEq({&a, Print<A>}, {&b, Print<B>}, text, file, line);
  return false;
}

}  // namespace tfring::testing

#define TEST(name)                                                                         \
  static void Test##name();                                                                \
  static const ::tfring::testing::Registrar registrar_##name(__FILE__, #name, Test##name); \
  static void Test##name()

// The checks of a case go on after a failure; the ASSERT forms return from the case.
#define EXPECT_TRUE(cond)                                                         \
  do {                                                                            \
    if (!(cond)) ::tfring::testing::Fail(__FILE__, __LINE__, "not true: " #cond); \
  } while (0)
#define EXPECT_EQ(a, b) (void)::tfring::testing::CheckEq((a), (b), #a " == " #b, __FILE__, __LINE__)
#define ASSERT_TRUE(cond)                                              \
  do {                                                                 \
    if (!(cond)) {                                                     \
      ::tfring::testing::Fail(__FILE__, __LINE__, "not true: " #cond); \
      return;                                                          \
    }                                                                  \
  } while (0)
#define ASSERT_EQ(a, b)                                                                  \
  do {                                                                                   \
    if (!::tfring::testing::CheckEq((a), (b), #a " == " #b, __FILE__, __LINE__)) return; \
  } while (0)
#define EXPECT_CONTAINS(text, part) \
  ::tfring::testing::CheckContains((text), (part), __FILE__, __LINE__)

#endif  // TFRING_TESTS_CC_TEST_H_
