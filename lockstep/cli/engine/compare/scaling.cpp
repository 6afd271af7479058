#include "lockstep/cli/engine/compare/scaling.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "lockstep/bench/program_experiment.h"
#include "lockstep/cli/engine/compare/options.h"
#include "lockstep/cli/engine/train/arguments.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/output.h"
#include "lockstep/data/digits.h"
#include "lockstep/report/line_chart.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
using bench::Row;
namespace {

struct ScalingArguments {
  CompareOptions common{.threads = 1};
  std::vector<int64_t> sizes;
  bool digits = false;  // the built-in digits go to `data`
  std::string data;
  Arguments train;  // passed on
};

ScalingArguments parse_scaling_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains the same model on several numbers of ranks, and shows how the time falls. Further "
      "options are those of `lockstep train mnist`, such as --data, --epochs, --strategy.",
      "lockstep compare");
  app.allow_extras();
  ScalingArguments result;
  std::string sizes, data_path = "digits";
  app.add_option("--scaling", sizes, "numbers of ranks, such as 1,2,3,4")
      ->required()
      ->type_name("N,...");
  app.add_option("--data", data_path, "directory of MNIST's four idx files, or 'digits' [digits]")
      ->type_name("PATH");
  result.common.add_to(app, "a run", "scaling.json");
  cli::add_example(app, {"lockstep compare --scaling 1,2,3,4 --epochs 1"});
  parse(app, arguments);
  result.common.check(app);
  result.sizes = bench::parse_rank_counts("--scaling", sizes);
  result.train = app.remaining();
  refuse_chosen(result.train, {"--nproc", "--resume"});
  result.digits = data_path == "digits";
  // All runs share one set of digits.
  result.data = result.digits ? (fs::path(result.common.output) / "data").string() : data_path;
  result.train.insert(result.train.begin(), {"mnist", "--data", result.data});
  return result;
}

fs::path folder_of(const ScalingArguments& arguments, int64_t nproc) {
  return fs::path(arguments.common.output) / ("ranks-" + std::to_string(nproc));
}

Arguments words_of_size(const ScalingArguments& arguments, int64_t nproc) {
  Arguments words = arguments.train;
  words.insert(words.end(), {"--nproc", std::to_string(nproc), "--output",
                             folder_of(arguments, nproc).string(), "--quiet"});
  return words;
}

Row row_of_size(int64_t nproc, double seconds, const std::string& result,
                const std::string& source) {
  const auto json = parse_json(result, source, refuse_as<DataError>);
  const JsonObject found(json, source, refuse_as<DataError>);
  constexpr double kMost = JsonObject::kAnyNumber;
  return {{"nproc", nproc},
          {"seconds", seconds},
          {"speed_up", 1.0},
          {"efficiency", 1.0},
          {"samples_per_s", found.number("samples_per_s", 0, kMost)},
          {"loss", found.number("loss", -kMost, kMost)},
          {"accuracy", found.number("accuracy", 0, 1)}};
}

}  // namespace

void compare_to_first_size(std::vector<Row>& rows) {
  for (Row& row : rows) {
    const double gain = rows[0].at("seconds").get<double>() / row.at("seconds").get<double>();
    row["speed_up"] = gain;
    row["efficiency"] = gain * rows[0].at("nproc").get<double>() / row.at("nproc").get<double>();
  }
}

std::string scaling_table(const std::vector<Row>& rows) {
  using bench::figure;
  const auto in_percent = [](int digits) {
    return [digits](double share) { return percent(share, digits); };
  };
  return text_of(sheet_of(
      std::vector<Shown<Row>>{
          figure("ranks", "nproc", 0), figure("seconds", "seconds", 2),
          figure("speed-up", "speed_up", 2), figure("efficiency", "efficiency", in_percent(0)),
          figure("samples/s", "samples_per_s", 0), figure("final loss", "loss", 4),
          figure("accuracy", "accuracy", in_percent(2))},
      rows));
}

std::string scaling_svg(const std::vector<Row>& rows) {
  Series time{"measured", {}, {}}, ideal_time{"ideal", {}, {}, true}, gain{"measured", {}, {}},
      ideal{"ideal", {}, {}, true};
  for (const Row& row : rows) {
    const double ranks = row.at("nproc"), ratio = ranks / rows[0].at("nproc").get<double>();
    for (Series* series : {&time, &ideal_time, &gain, &ideal}) series->x.push_back(ranks);
    time.y.push_back(row.at("seconds"));
    ideal_time.y.push_back(rows[0].at("seconds").get<double>() / ratio);
    gain.y.push_back(row.at("speed_up"));
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
    ScalingArguments parsed = parse_scaling_arguments(arguments);
    const std::string lockstep = lockstep_program(), engine = job_program(engine_program());
    const auto claim = parsed.common.begin(1);
    if (parsed.digits) data::generate_digits(parsed.data);
    for (const int64_t size : parsed.sizes) {  // all of them, before the first one runs for minutes
      const TrainArguments train = parse_train_arguments(words_of_size(parsed, size));
      const OutputFolder one = check_train_input(make_train_plan(train, std::nullopt), train);
    }
    const fs::path output = parsed.common.output, json = output / "scaling.json",
                   picture = output / "scaling.svg";
    std::vector<Row> rows;
    bench::ProgramExperiment experiment = parsed.common.experiment();
    for (const int64_t size : parsed.sizes) {
      const fs::path folder = folder_of(parsed, size);
      // A launcher of its own starts the ranks, so that the time is theirs alone.
      bench::ProgramJob job{
          .name = std::to_string(size) + (size == 1 ? " rank" : " ranks"),
          .command = {lockstep, "run", "--nproc-per-node", std::to_string(size), engine, "train"},
          .nproc = size,
          .log = folder / bench::kJobLog,
          .result = RunFolder{folder}.result(),
          .read = {}};
      const Arguments words = words_of_size(parsed, size);
      job.command.insert(job.command.end(), words.begin(), words.end());
      job.read = [&rows, size, source = job.result.string()](const std::string& result,
                                                             double seconds) {
        rows.push_back(row_of_size(size, seconds, result, source));
        std::cout << "Total execution time for " << size << " ranks: " << fixed(seconds, 3)
                  << " seconds" << std::endl;
        return "loss " + fixed(rows.back().at("loss"), 4);
      };
      experiment.jobs.push_back(std::move(job));
    }
    experiment.files = {json.filename(), picture.filename()};
    experiment.write = [&] {
      if (rows.empty()) return;
      compare_to_first_size(rows);
      const Row all{{"recipe", "mnist"},
                    {"threads_per_rank", parsed.common.threads},
                    {"arguments", parsed.train},
                    {"runs", rows}};
      write_json(json.string(), all);
      write_json(parsed.common.json, all);
      write_file_aside(picture, scaling_svg(rows));
    };
    experiment.summary = [&]() -> std::string {
      if (rows.empty()) return "No number of ranks has a result.";
      return "\n" + scaling_table(rows) + "\nEach rank had " +
             std::to_string(parsed.common.threads) +
             (parsed.common.threads == 1 ? " thread. " : " threads. ") + "Table: " + json.string() +
             ", picture: " + picture.string();
    };
    return bench::run_programs(experiment);
  });
}

}  // namespace lockstep::inline v0::engine
