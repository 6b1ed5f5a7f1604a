#ifndef TFRING_TESTS_CC_TEST_H_
#define TFRING_TESTS_CC_TEST_H_

#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

// A test runner of one page: no C++ test library can be had with a compiler and pip alone
// (docs/adr/0004). Write TEST(name) { EXPECT_EQ(a, b); }; every program has the same main, in
// test_main.cc.

namespace tfring::testing {

struct Case {
  std::string name;
  std::function<void()> body;
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

inline int& Failures() {
  static int failures = 0;
  return failures;
}

struct Registrar {
  Registrar(const char* name, std::function<void()> body) { Cases().push_back({name, body}); }
};

template <typename T, typename = void>
struct Printable : std::false_type {};
template <typename T>
struct Printable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<T>())>>
    : std::true_type {};

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  if constexpr (Printable<T>::value) {
    out << value;
  } else {
    out << "(a value of " << sizeof(T) << " bytes)";
  }
  return out.str();
}

inline void Fail(const char* file, int line, const std::string& what) {
  ++Failures();
  std::cerr << file << ":" << line << ": " << what << "\n";
}

template <typename A, typename B>
bool CheckEq(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return true;
  Fail(file, line, std::string(text) + ": " + Show(a) + " is not " + Show(b));
  return false;
}

}  // namespace tfring::testing

#define TEST(name)                                                               \
  static void Test##name();                                                      \
  static const ::tfring::testing::Registrar registrar_##name(#name, Test##name); \
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
#define EXPECT_CONTAINS(text, part)                                                      \
  do {                                                                                   \
    if (std::string(text).find(part) == std::string::npos)                               \
      ::tfring::testing::Fail(__FILE__, __LINE__,                                        \
                              "\"" + std::string(text) + "\" lacks \"" + (part) + "\""); \
  } while (0)

#endif  // TFRING_TESTS_CC_TEST_H_
