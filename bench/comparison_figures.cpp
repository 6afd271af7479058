// Draws docs/figures/comparison_*.svg from a comparison.json of `lockstep compare`:
// comparison_figures FOLDER [comparison.json]. Without the second argument: from the one in
// docs/figures. With it, a copy without the long lists goes to FOLDER too.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/bench/comparison_page.h"
#include "lockstep/core/aside_file.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Everything but the losses after the fifth, evaluations and confusion matrices.
Json shortened(Json comparison) {
  for (Json& method : comparison.at("methods")) {
    if (method.contains("failure")) continue;
    method["losses"] = method.at("first_losses");
    method["evaluations"] = Json::array();
    method.erase("labels");
    method.erase("confusion");
    method["checkpoint"] = "";
  }
  return comparison;
}

// What the pictures show of it.
lockstep::bench::Comparison shown(const Json& json, const std::string& source) {
  lockstep::bench::Comparison comparison;
  comparison.perplexity = json.value("perplexity", false);
  for (const Json& method : json.at("methods")) {
    const std::string name = method.at("method");
    auto& row = comparison.methods.emplace_back();
    row.method = name;
    if (!method.contains("failure"))
      row.result = lockstep::run_result_of(method, source + ": " + name);
  }
  return comparison;
}

void draw(const fs::path& folder, const std::string& source, bool copy) {
  std::ifstream file(source, std::ios::binary);
  const Json json = shortened(Json::parse(file));
  const lockstep::bench::Comparison comparison = shown(json, source);
  if (copy) lockstep::write_file_aside(folder / "comparison.json", json.dump(2) + "\n");
  const auto put = [&](const std::string& name, const lockstep::Words& svg) {
    lockstep::write_file_aside(folder / ("comparison_" + name + ".svg"), svg.en);
    lockstep::write_file_aside(folder / ("comparison_" + name + "_zh.svg"), svg.zh);
  };
  put("time", lockstep::bench::time_picture(comparison));
  const bool has_parts =
      std::any_of(comparison.methods.begin(), comparison.methods.end(),
                  [](const auto& method) { return method.result && method.result->parts_s; });
  if (has_parts) put("parts", lockstep::bench::parts_picture(comparison));
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
