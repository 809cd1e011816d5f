// Runs every suite: one line per test file, then the totals. Arguments choose suites by name.

#include <cstring>
#include <iostream>

#include "check.h"

namespace thinwire::test {

Suite adam_suite();
Suite chunk_topk_suite();
Suite crc32c_suite();
Suite dense_suite();
Suite dither_suite();
Suite elias_suite();
Suite memory_suite();
Suite rice_suite();
Suite sampling_suite();
Suite sign_suite();
Suite sign_runs_suite();
Suite sparse_suite();
Suite sparse_steps_suite();
Suite topk_suite();

namespace {

struct Totals {
  size_t passed = 0;
  size_t failed = 0;
};

Totals run(const Suite& suite) {
  Totals totals;
  for (const Test& test : suite.tests) {
    failed_checks() = 0;
    test.run();
    const bool passed = failed_checks() == 0;
    if (!passed) std::cout << suite.file << ": " << test.name << " failed " << failed_checks() << " checks\n";
    ++(passed ? totals.passed : totals.failed);
  }
  std::cout << suite.file << ": " << totals.passed << " of " << suite.tests.size() << " passed" << std::endl;
  return totals;
}

bool wanted(const Suite& suite, int argc, char** argv) {
  if (argc < 2) return true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], suite.file) == 0) return true;
  }
  return false;
}

int run_all(int argc, char** argv) {
  Totals totals;
  for (const auto& make : {adam_suite, chunk_topk_suite, crc32c_suite, dense_suite, dither_suite, elias_suite,
                           memory_suite, rice_suite, sampling_suite, sign_suite, sign_runs_suite, sparse_suite,
                           sparse_steps_suite, topk_suite}) {
    const Suite suite = make();
    if (!wanted(suite, argc, argv)) continue;
    const Totals more = run(suite);
    totals.passed += more.passed;
    totals.failed += more.failed;
  }
  std::cout << totals.passed << " passed, " << totals.failed << " failed" << std::endl;
  return totals.failed == 0 && totals.passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace thinwire::test

int main(int argc, char** argv) { return thinwire::test::run_all(argc, argv); }
