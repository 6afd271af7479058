// The picture of a training run, made from the lines of its metrics file.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/report/sheet.h"

namespace lockstep::inline v0 {

struct RunReport {
  Words title;
  std::string held_out = "test";  // the set of the evaluations: "test" or "dev"
};

// Draws the loss, and the evaluations' accuracy or, if they have one, perplexity, against the step,
// in English and in Chinese. Lines that cannot be read are left out. Pure, except that it reads the
// file.
Words run_report_svg(const std::filesystem::path& metrics, const RunReport& report);

// The name of the evaluation set, "dev" or "test", in both languages.
Words held_out_words(const std::string& held_out);

// The path of a picture's Chinese version: "report_zh.svg" beside "report.svg".
std::filesystem::path in_chinese(const std::filesystem::path& picture);

}  // namespace lockstep::inline v0
