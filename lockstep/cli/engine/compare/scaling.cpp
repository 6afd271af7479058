#include "lockstep/cli/engine/compare/scaling.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/cli/engine/train/arguments.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/data/digits.h"
#include "lockstep/launch/agent.h"
#include "lockstep/report/line_chart.h"
#include "lockstep/report/table.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

struct CompareArguments {
  std::vector<int64_t> sizes;
  std::string output = "runs/compare";
  std::string json;
  int threads = 1;
  bool digits = false;  // `data` is where the built-in digits go
  std::string data;
  Arguments train;  // passed on
};

CompareArguments parse_compare_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains the same model on several numbers of ranks, and shows how the time falls. Further "
      "options are those of `lockstep "
      "train mnist`, such as --data, --epochs, --strategy.",
      "lockstep compare");
  app.allow_extras();
  CompareArguments result;
  std::string sizes, data_path = "digits";
  app.add_option("--scaling", sizes, "numbers of ranks, such as 1,2,3,4")
      ->required()
      ->type_name("N,...");
  app.add_option("--output", result.output,
                 "directory for the runs, scaling.json and scaling.svg [runs/compare]")
      ->type_name("DIR");
  app.add_option("--data", data_path, "directory of MNIST's four idx files, or 'digits' [digits]")
      ->type_name("PATH");
  app.add_option("--threads-per-rank", result.threads,
                 "each rank is a device of so many threads [1]");
  app.add_option("--json", result.json, "also write the result to this file")->type_name("FILE");
  cli::add_example(app, {"lockstep compare --scaling 1,2,3,4 --epochs 1"});
  parse(app, arguments);
  result.sizes = parse_sizes(sizes);
  if (result.threads < 1)
    throw InvalidArgument("--threads-per-rank is " + std::to_string(result.threads) +
                          "; give 1 or more");
  result.train = app.remaining();
  for (const std::string& argument : result.train) {
    for (const char* own : {"--nproc", "--resume"}) {
      if (argument.rfind(own, 0) == 0)
        throw InvalidArgument(argument + " does not go with --scaling, which chooses it");
    }
  }
  result.digits = data_path == "digits";
  // One set of digits for all runs.
  result.data = result.digits ? (fs::path(result.output) / "data").string() : data_path;
  result.train.insert(result.train.begin(), {"mnist", "--data", result.data});
  return result;
}

Arguments arguments_of(const CompareArguments& arguments, int64_t nproc) {
  Arguments result = arguments.train;
  const fs::path output = fs::path(arguments.output) / ("ranks-" + std::to_string(nproc));
  for (const std::string& more :
       {std::string("--nproc"), std::to_string(nproc), std::string("--output"), output.string(),
        std::string("--quiet")}) {
    result.push_back(more);
  }
  return result;
}

// Of a former comparison.
void make_room(const fs::path& output) {
  std::vector<std::string> parts{"scaling.json", "scaling.svg"};
  const std::string start = "ranks-";
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start) && parse_int(name.substr(start.size()), 1)) parts.push_back(name);
  }
  if (const auto moved = move_former_run_aside(output, parts))
    write_all(STDERR_FILENO, *moved + "\n");
}

struct Outcome {
  int exit_code = 0;
  ScalingRow row = {};  // valid when exit_code == 0
};

Outcome run_one(const CompareArguments& arguments, int64_t nproc) {
  const Arguments train = arguments_of(arguments, nproc);
  launch::LaunchOptions options;
  options.command = {"lockstep", "train"};
  options.command.insert(options.command.end(), train.begin(), train.end());
  options.program = engine_program().string();
  options.nproc = static_cast<int>(nproc);
  options.threads_per_rank = arguments.threads;
  const auto start = std::chrono::steady_clock::now();
  const launch::LaunchResult ended = launch::launch(options);
  ScalingRow row;
  row.nproc = nproc;
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ended.exit_code != 0) return {.exit_code = ended.exit_code};
  const RunFolder folder{fs::path(arguments.output) / ("ranks-" + std::to_string(nproc))};
  const auto json = nlohmann::json::parse(read_named_file(folder.result()));
  row.samples_per_s = json.at("samples_per_s");
  row.loss = json.at("loss");
  row.accuracy = json.at("accuracy");
  return {.row = row};
}

nlohmann::ordered_json to_json(const std::vector<ScalingRow>& rows,
                               const CompareArguments& arguments) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (size_t i = 0; i < rows.size(); ++i) {
    runs.push_back({{"nproc", rows[i].nproc},
                    {"seconds", rows[i].seconds},
                    {"speed_up", speed_up(rows, i)},
                    {"efficiency", efficiency(rows, i)},
                    {"samples_per_s", rows[i].samples_per_s},
                    {"loss", rows[i].loss},
                    {"accuracy", rows[i].accuracy}});
  }
  return {{"recipe", "mnist"},
          {"threads_per_rank", arguments.threads},
          {"arguments", arguments.train},
          {"runs", runs}};
}

}  // namespace

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const auto size = parse_int(item, 1, 1024);
    if (!size)
      throw InvalidArgument("--scaling has '" + item +
                            "'; give numbers of ranks with commas, such as 1,2,3,4");
    sizes.push_back(*size);
  }
  if (sizes.empty())
    throw InvalidArgument("--scaling is empty; give numbers of ranks with commas, such as 1,2,3,4");
  return sizes;
}

double speed_up(const std::vector<ScalingRow>& rows, size_t row) {
  return rows[0].seconds / rows[row].seconds;
}

double efficiency(const std::vector<ScalingRow>& rows, size_t row) {
  return speed_up(rows, row) * static_cast<double>(rows[0].nproc) /
         static_cast<double>(rows[row].nproc);
}

std::string scaling_table(const std::vector<ScalingRow>& rows) {
  Table table({{"ranks"},
               {"seconds"},
               {"speed-up"},
               {"efficiency"},
               {"samples/s"},
               {"final loss"},
               {"accuracy"}});
  for (size_t i = 0; i < rows.size(); ++i) {
    table.add({std::to_string(rows[i].nproc), fixed(rows[i].seconds, 2),
               fixed(speed_up(rows, i), 2), percent(efficiency(rows, i), 0),
               fixed(rows[i].samples_per_s, 0), fixed(rows[i].loss, 4),
               percent(rows[i].accuracy, 2)});
  }
  return table.str();
}

std::string scaling_svg(const std::vector<ScalingRow>& rows) {
  Series time{"measured", {}, {}}, ideal_time{"ideal", {}, {}, true}, gain{"measured", {}, {}},
      ideal{"ideal", {}, {}, true};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto ranks = static_cast<double>(rows[i].nproc),
               ratio = ranks / static_cast<double>(rows[0].nproc);
    for (Series* series : {&time, &ideal_time, &gain, &ideal}) series->x.push_back(ranks);
    time.y.push_back(rows[i].seconds);
    ideal_time.y.push_back(rows[0].seconds / ratio);
    gain.y.push_back(speed_up(rows, i));
    ideal.y.push_back(ratio);
  }
  ChartPanel times{
      .title = "Time", .x_label = "ranks", .y_label = "seconds", .series = {time, ideal_time}};
  ChartPanel gains{
      .title = "Speed-up", .x_label = "ranks", .y_label = "times", .series = {gain, ideal}};
  times.x_integers = gains.x_integers = true;
  return svg_line_chart({times, gains}, {.title = "Training time against the number of ranks"});
}

int compare_scaling(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    const CompareArguments parsed = parse_compare_arguments(arguments);
    const RunClaim claim(parsed.output, process_env());
    check_result_files({parsed.json});
    if (parsed.digits) data::generate_digits(parsed.data);
    for (const int64_t size : parsed.sizes) {  // all of them, before the first one runs for minutes
      const TrainArguments train = parse_train_arguments(arguments_of(parsed, size));
      const OutputFolder one = check_train_input(make_train_plan(train, std::nullopt), train);
    }
    make_room(parsed.output);
    std::vector<ScalingRow> rows;
    for (const int64_t size : parsed.sizes) {
      const Outcome outcome = run_one(parsed, size);
      if (outcome.exit_code != 0) return outcome.exit_code;  // the launcher has said why
      rows.push_back(outcome.row);
      std::cout << "Total execution time for " << size
                << " ranks: " << fixed(outcome.row.seconds, 3) << " seconds" << std::endl;
    }
    std::cout << "\n" << scaling_table(rows);
    const fs::path json = fs::path(parsed.output) / "scaling.json",
                   picture = fs::path(parsed.output) / "scaling.svg";
    write_json(json.string(), to_json(rows, parsed));
    write_json(parsed.json, to_json(rows, parsed));
    write_file_aside(picture, scaling_svg(rows));
    std::cout << "\nEach rank had " << parsed.threads
              << (parsed.threads == 1 ? " thread. " : " threads. ") << "Table: " << json.string()
              << ", picture: " << picture.string() << std::endl;
    return 0;
  });
}

}  // namespace lockstep::engine
