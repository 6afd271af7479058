// Draws docs/figures/comparison_*.svg from a comparison.json of `lockstep compare`:
// comparison_figures FOLDER [comparison.json]. Without the second argument: from the one in
// docs/figures. With it, a copy without the long lists goes to FOLDER too.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "lockstep/core/aside_file.h"
#include "lockstep/report/comparison_page.h"

namespace {

namespace fs = std::filesystem;

// Everything but the losses after the fifth, evaluations and confusion matrices.
lockstep::Comparison shortened(lockstep::Comparison comparison) {
  for (lockstep::ComparedMethod& method : comparison.methods) {
    if (!method.result) continue;
    method.result->losses = lockstep::first_losses(*method.result);
    method.result->evaluations.clear();
    method.result->confusion.reset();
    method.result->checkpoint.clear();
  }
  return comparison;
}

void draw(const fs::path& folder, const std::string& source, bool copy) {
  std::ostringstream text;
  text << std::ifstream(source, std::ios::binary).rdbuf();
  const lockstep::Comparison comparison = shortened(lockstep::parse_comparison(text.str(), source));
  if (copy) {
    lockstep::write_file_aside(folder / "comparison.json",
                               lockstep::to_json(comparison).dump(2) + "\n");
  }
  const auto put = [&](const std::string& name, const lockstep::Words& svg) {
    lockstep::write_file_aside(folder / ("comparison_" + name + ".svg"), svg.en);
    lockstep::write_file_aside(folder / ("comparison_" + name + "_zh.svg"), svg.zh);
  };
  put("time", lockstep::time_picture(comparison));
  const bool has_parts =
      std::any_of(comparison.methods.begin(), comparison.methods.end(),
                  [](const auto& method) { return method.result && method.result->parts_s; });
  if (has_parts) put("parts", lockstep::parts_picture(comparison));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: comparison_figures FOLDER [comparison.json]\n", stderr);
    return 2;
  }
  try {
    draw(argv[1], argc == 3 ? argv[2] : LOCKSTEP_SOURCE_DIR "/docs/figures/comparison.json",
         argc == 3);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comparison_figures: %s\n", error.what());
    return 1;
  }
  return 0;
}
