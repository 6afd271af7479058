// Of every test program: which part of the cases it runs (SHARDS in LockstepRoom.cmake) is its own. The processes that a case
// starts run one case of the same program, and would find it in another part.
// And under an emulator, which cases it skips (tests/emulation.txt).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

namespace {

// Lines "Suite.Case  reason"; a suite alone stands for all its cases.
std::map<std::string, std::string> reasons_in(const std::string& file) {
  std::map<std::string, std::string> reasons;
  std::ifstream in(file);
  if (!in) {
    std::cerr << "LOCKSTEP_SKIPPED_CASES: " << file << " cannot be read\n";
    std::exit(2);
  }
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, reason;
    words >> name >> std::ws;
    std::getline(words, reason);
    if (!name.empty() && name[0] != '#') reasons[name] = reason;
  }
  return reasons;
}

class SkippedCases final : public ::testing::EmptyTestEventListener {
 public:
  explicit SkippedCases(const std::string& file) : reasons_(reasons_in(file)) {}

 private:
  void OnTestStart(const ::testing::TestInfo& test) override {
    const std::string suite = test.test_suite_name();
    for (const std::string& name : {suite + "." + test.name(), suite}) {
      if (const auto found = reasons_.find(name); found != reasons_.end()) {
        GTEST_SKIP() << "under the emulator: " << found->second;
      }
    }
  }

  std::map<std::string, std::string> reasons_;
};

class TestParts final : public ::testing::Environment {
 public:
  // The cases have been chosen by now.
  void SetUp() override {
    ::unsetenv("GTEST_TOTAL_SHARDS");
    ::unsetenv("GTEST_SHARD_INDEX");
    if (const char* const file = std::getenv("LOCKSTEP_SKIPPED_CASES"))
      ::testing::UnitTest::GetInstance()->listeners().Append(new SkippedCases(file));
  }
};

[[maybe_unused]] const ::testing::Environment* const kParts =
    ::testing::AddGlobalTestEnvironment(new TestParts);  // GoogleTest's from here on

}  // namespace
