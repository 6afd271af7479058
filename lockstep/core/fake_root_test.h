// For tests: a folder that stands for the parent of /proc and /sys.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {
namespace fake_root_test {

class FakeRoot : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    root_.write(file, text);
  }

  TestDirectory root_;
};

}  // namespace fake_root_test
}  // namespace lockstep::inline v0
