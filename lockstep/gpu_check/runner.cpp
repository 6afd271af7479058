#include "lockstep/gpu_check/runner.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/gpu_check/commands.h"
#include "lockstep/gpu_check/parts.h"

namespace lockstep::inline v0::gpu_check {
namespace {

constexpr double kLeast = 2;  // seconds: with less, a part is not begun

// The rows of a part, with one more for what went wrong with its process.
std::vector<Row> rows_of(const Part& part, const Options& options, double seconds) {
  Options own = options;
  own.seconds = seconds;
  std::vector<std::string> command = own.arguments({"--part", part.name});
  command.insert(command.begin(), own_program());
  const CommandOutput ended = run_command(command, seconds);
  const std::string& wrong = ended.wrong;
  Output said = take_rows(ended.text);
  if (!wrong.empty()) {
    const std::string words = last_words(said.rest);
    said.rows.push_back({.part = part.name,
                         .check = "the part itself",
                         .outcome = Outcome::kFailed,
                         .text = wrong + (words.empty() ? "" : ": " + words)});
  }
  return std::move(said.rows);
}

std::string kind_of_run(const Options& options) {
  std::string text = options.small ? "small" : "full";
  if (devices_are_played()) text += ", on devices that the host plays";
  return text;
}

struct Report {
  const Options& options;
  std::vector<Row> rows = {};
  nlohmann::json seconds = nlohmann::json::object();  // that each part took

  void write() const {
    nlohmann::json report = {{"torch", TORCH_VERSION},
                             {"run", kind_of_run(options)},
                             {"ranks", options.ranks},
                             {"seconds", seconds},
                             {"rows", nlohmann::json::array()}};
    for (const Row& row : rows) report["rows"].push_back(to_json(row));
    // What a driver says need not be UTF-8.
    write_output_file(options.json,
                      report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
};

}  // namespace

std::string own_program() {
  std::array<char, 4096> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n <= 0) throw system_error("readlink /proc/self/exe", errno);
  return std::string(path.data(), static_cast<size_t>(n));
}

int run_all(const Options& options) {
  for (const std::string& name : options.only) {
    if (std::none_of(parts().begin(), parts().end(),
                     [&](const Part& part) { return part.name == name; })) {
      std::string known;
      for (const Part& part : parts()) known += std::string(known.empty() ? "" : ", ") + part.name;
      throw InvalidArgument("--only '" + name + "' is no part; there are " + known);
    }
  }
  check_output_file(options.json);
  if (visible_device_count() == 0)
    throw InvalidArgument(
        "no CUDA device is visible here (nvidia-smi, CUDA_VISIBLE_DEVICES); run this where there "
        "is one");
  const Deadline whole = Deadline::seconds(options.seconds);
  Report report{.options = options};
  for (const Part& part : parts()) {
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), part.name) == options.only.end())
      continue;
    const double left = std::chrono::duration<double>(whole.remaining()).count();
    if (left < kLeast) {
      report.rows.push_back({part.name, "all of it", Outcome::kSkipped, "no time was left"});
    } else {
      const Deadline clock = Deadline::seconds(std::min(left, part.limit));
      std::vector<Row> found = rows_of(part, options, clock.timeout_seconds());
      if (found.empty())
        found.push_back({part.name, "the part itself", Outcome::kFailed, "it said nothing"});
      report.seconds[part.name] = clock.elapsed_seconds();
      write_all(STDERR_FILENO, std::string(part.name) + ": " + std::to_string(found.size()) +
                                   " rows in " + three_digits(clock.elapsed_seconds()) + " s\n");
      for (Row& row : found) report.rows.push_back(std::move(row));
    }
    // After each, so that who ends this program has what there was.
    report.write();
  }
  const std::vector<Row>& rows = report.rows;
  write_for_people(to_table(rows), {options.json});
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.outcome == Outcome::kFailed; })
             ? 1
             : 0;
}

int run_part(const Options& options) {
  std::vector<Part> known = parts();
  known.push_back({"small-operations", 0, look_at_small_operations});
  for (const Part& part : known) {
    if (part.name != options.part) continue;
    const Rows rows(part.name);
    rows.guard("the part itself", [&] { part.run(options, rows); });
    return 0;
  }
  throw InvalidArgument("--part '" + options.part + "' is none");
}

}  // namespace lockstep::inline v0::gpu_check
