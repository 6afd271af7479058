// The picture of a training run, from the lines of its metrics file.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/report/sheet.h"

namespace lockstep {

struct RunReport {
  Words title;
  std::string held_out = "test";  // what evaluations are on: "test" or "dev"
};

// The loss, and the accuracy of evaluations, or where they have one their perplexity, against the
// step; in English and in Chinese. Lines that cannot be read are left out. Pure but for the file.
Words run_report_svg(const std::filesystem::path& metrics, const RunReport& report);

// What is evaluated on, in both languages: "dev" or "test".
Words held_out_words(const std::string& held_out);

// Where a picture's Chinese version goes: "report_zh.svg" beside "report.svg".
std::filesystem::path in_chinese(const std::filesystem::path& picture);

}  // namespace lockstep
