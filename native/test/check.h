// The whole test harness: checks that print file and line, and lists of tests.
//
// A test file defines a Suite; main.cc lists the suites. A failed check marks its test and lets it go on, so a test
// tells all that is wrong with it, up to a few lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

namespace thinwire::test {

struct Test {
  const char* name;
  void (*run)();
};

struct Suite {
  const char* file;
  std::vector<Test> tests;
};

// How many checks the running test has failed.
inline size_t& failed_checks() {
  static size_t count = 0;
  return count;
}

// Counts a failure. True if it is one of the first few of its test, which are the ones to print.
inline bool note_failure(const char* file, int line) {
  constexpr size_t kMostPrinted = 5;
  if (++failed_checks() > kMostPrinted) return false;
  std::cout << file << ':' << line << ": ";
  return true;
}

inline void check(bool holds, const char* text, const char* file, int line) {
  if (!holds && note_failure(file, line)) std::cout << text << " does not hold\n";
}

// Numbers are printed as numbers, also when they are characters.
template <class T>
auto printable(const T& value) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<int>(value);
  } else {
    return value;
  }
}

template <class A, class B>
void check_equal(const A& found, const B& expected, const char* text, const char* file, int line) {
  if (found == expected) return;
  if (note_failure(file, line)) {
    std::cout << text << " is " << printable(found) << ", expected " << printable(expected) << '\n';
  }
}

}  // namespace thinwire::test

// Macros only because a failure must tell its own file, line and text.
#define CHECK(condition) ::thinwire::test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(found, expected) ::thinwire::test::check_equal((found), (expected), #found, __FILE__, __LINE__)
