#include "lockstep/cli/engine/verify/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/bench/experiment.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/report/sheet.h"

namespace lockstep::inline v0::engine {
namespace {

using Json = nlohmann::ordered_json;

std::string difference_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return value == 0 ? "0" : std::isfinite(value) ? text : "not comparable";
}

// The text of a cell: the figure, the reason why there is none, or the fault.
std::string verdict(const EqualityCell& cell, double tolerance) {
  if (!cell.refused.empty()) return "refused";
  std::string text = difference_text(cell.result.most());
  if (cell.repeats && !*cell.repeats) text += ", other bits the second time";
  if (cell.result.most() > tolerance) text += ", at " + cell.result.worst;
  return text;
}

Json to_json(const EqualityCell& cell, double tolerance) {
  Json json{{"model", cell.model},
            {"product", to_string(cell.product)},
            {"ranks", cell.product.ranks},
            {"seconds", cell.seconds}};
  if (!cell.refused.empty()) {
    json["refused"] = cell.refused;
    return json;
  }
  json["losses"] = cell.result.losses;
  json["norms"] = cell.result.norms;
  json["evaluated"] = cell.result.evaluated;
  json["parameters"] = cell.result.parameters;
  json["worst"] = cell.result.worst;
  if (cell.repeats) json["repeats"] = *cell.repeats;
  json["holds"] = cell.holds(tolerance);
  return json;
}

// The table has a row for each product and a column for each model.
Sheet matrix_sheet(const std::vector<EqualityCell>& cells, const VerifyPlan& plan) {
  const size_t products = plan.products.size();
  Sheet sheet{.columns = {{same_words("product"), Align::kLeft}, {same_words("ranks")}},
              .rows = {}};
  for (const EqualityProduct& product : plan.products)
    sheet.rows.push_back({to_string(product), std::to_string(product.ranks)});
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i % products == 0) sheet.columns.push_back({same_words(cells[i].model)});
    sheet.rows[i % products].push_back(verdict(cells[i], plan.tolerance));
  }
  return sheet;
}

// There is a job for each cell; a model's first job trains it in one process before.
std::vector<bench::Job> jobs_of(const VerifyPlan& plan, std::vector<EqualityCell>& cells) {
  std::vector<bench::Job> jobs;
  for (const EqualityModel& model : equality_models()) {
    const auto expected = std::make_shared<std::optional<EqualityRun>>();
    for (const EqualityProduct& product : plan.products) {
      jobs.push_back({model.name + ", " + to_string(product), [&, expected] {
                        if (!*expected) *expected = train_whole(model, plan.training);
                        cells.push_back(
                            compare_product(model, **expected, product,
                                            {.training = plan.training, .repeat = plan.repeat}));
                        return verdict(cells.back(), plan.tolerance);
                      }});
    }
  }
  return jobs;
}

struct VerifyArguments {
  std::string dtype = "float64", mesh, schedule = "1f1b";
  int ranks = 8, zero = 0, micro_batches = 0;
  bool matrix = false, divided_rows = false;
};

void add_options(CLI::App& app, VerifyArguments& arguments, VerifyPlan& plan) {
  app.add_flag("--matrix", arguments.matrix, "all products that there are");
  app.add_option("--mesh", arguments.mesh, "one product instead, such as data=2,pipe=2,tensor=2")
      ->type_name("AXIS=N,...");
  app.add_option("--zero", arguments.zero, "with --mesh: ZeRO's stage [0]");
  app.add_option("--schedule", arguments.schedule, "with --mesh: the pipeline's schedule [1f1b]")
      ->type_name("gpipe|1f1b|interleaved|zb-h1|zb-v");
  app.add_option("--micro-batches", arguments.micro_batches, "with --mesh: a step's [2 a stage]");
  app.add_flag("--divided-rows", arguments.divided_rows, "with --mesh: sequence parallelism");
  app.add_option("--ranks", arguments.ranks, "at most so many, threads of this process [8]");
  app.add_option("--steps", plan.training.steps, "of training [20]");
  app.add_option("--dtype", arguments.dtype, "what is computed in [float64]")
      ->type_name("float64|float32");
  app.add_option("--tolerance", plan.tolerance,
                 "what is equal, relatively; 0: the same bits [1e-10, in float32 1e-5]");
  app.add_flag("--repeat", plan.repeat, "each twice: the same bits?");
  app.add_option("--json", plan.json, "also write the figures to this file")->type_name("FILE");
  app.add_option("--markdown", plan.markdown, "also write the table to this file")
      ->type_name("FILE");
  cli::add_example(app, {"lockstep verify --matrix --steps 5",
                         "lockstep verify --mesh data=2,tensor=2 --zero 1"});
}

void check_arguments(const CLI::App& app, const VerifyArguments& arguments,
                     const VerifyPlan& plan) {
  const auto gives = [&app](const char* option) { return app.get_option(option)->count() > 0; };
  if (arguments.matrix == gives("--mesh"))
    throw InvalidArgument("give --matrix for all products, or --mesh for one");
  for (const char* of_one : {"--zero", "--schedule", "--micro-batches", "--divided-rows"}) {
    if (arguments.matrix && gives(of_one))
      throw InvalidArgument(
          "--zero, --schedule, --micro-batches and --divided-rows are of one product: give --mesh "
          "in the place of --matrix");
  }
  refuse_zeros(app, {"--micro-batches"});
  if (arguments.dtype != "float64" && arguments.dtype != "float32")
    throw InvalidArgument("--dtype " + arguments.dtype + ": give float64 or float32");
  if (arguments.ranks < 1 || arguments.ranks > 64) throw InvalidArgument("--ranks: give 1 to 64");
  if (plan.training.steps < 1) throw InvalidArgument("--steps: give 1 or more");
  if (!(plan.tolerance >= 0 && std::isfinite(plan.tolerance)))
    throw InvalidArgument("--tolerance: give a number from 0 on");
  check_result_files({plan.json, plan.markdown});
}

// A product that no model takes is refused before anything is trained.
void check_product(const EqualityProduct& product) {
  std::string first;
  for (const EqualityModel& model : equality_models()) {
    try {
      check(model, product.how, product.ranks);
      return;
    } catch (const InvalidArgument& error) {
      if (first.empty()) first = error.what();
    }
  }
  throw InvalidArgument(first);
}

std::vector<EqualityProduct> products_of(const VerifyArguments& arguments) {
  if (arguments.matrix) return equality_products(arguments.ranks);
  Parallelism how = parse_parallelism(arguments.mesh);
  how.zero = arguments.zero;
  how.schedule = arguments.schedule;
  how.micro_batches = arguments.micro_batches;
  how.divides_rows = arguments.divided_rows;
  int ranks = 1;
  for (const MeshAxis& axis : how.axes) ranks *= std::max(axis.size, 1);
  if (ranks > arguments.ranks)
    throw InvalidArgument("--mesh " + arguments.mesh + " has " + std::to_string(ranks) +
                          " ranks; give --ranks " + std::to_string(ranks) + " to allow so many");
  check_product({how, ranks});
  return {{how, ranks}};
}

}  // namespace

VerifyPlan plan_verify(const Arguments& words) {
  CLI::App app(
      "Trains small language models divided in every way, on threads of this process, and "
      "compares losses, gradients' norms and parameters with one process. Exit code 0: all are "
      "equal, 1: some are not, 2: bad usage.",
      "lockstep verify");
  VerifyArguments arguments;
  VerifyPlan plan{.training = {.steps = 20}};
  add_options(app, arguments, plan);
  parse(app, words);
  const bool in_float32 = arguments.dtype == "float32";
  plan.training.dtype = in_float32 ? at::kFloat : at::kDouble;
  plan.training.adam = !in_float32;
  if (app.get_option("--tolerance")->empty())
    plan.tolerance = default_tolerance(plan.training.dtype);
  check_arguments(app, arguments, plan);
  plan.dtype = arguments.dtype;
  plan.products = products_of(arguments);
  return plan;
}

int verify_command(const Arguments& words) {
  return run_guarded("verify", [&] {
    const VerifyPlan plan = plan_verify(words);
    std::vector<EqualityCell> cells;
    bench::TurnBar bar;
    bench::run_experiment(jobs_of(plan, cells), 1, bar);
    bar.finish(std::to_string(cells.size()) + " compared");
    const Sheet sheet = matrix_sheet(cells, plan);
    size_t held = 0, refused = 0;
    Json list = Json::array();
    for (const EqualityCell& cell : cells) {
      held += cell.holds(plan.tolerance) ? 1 : 0;
      refused += cell.refused.empty() ? 0 : 1;
      list.push_back(to_json(cell, plan.tolerance));
    }
    const size_t compared = cells.size() - refused;
    std::cout << "The largest relative difference from one process after " << plan.training.steps
              << " steps of " << (plan.training.adam ? "AdamW" : "SGD with momentum") << ", in "
              << plan.dtype << ":\n\n"
              << text_of(sheet) << "\n"
              << held << " of " << compared << " equal one process within "
              << difference_text(plan.tolerance);
    if (plan.repeat) std::cout << ", and repeat in every bit";
    if (refused > 0) std::cout << "; " << refused << " are refused products";
    std::cout << "\n" << std::flush;
    write_json(plan.json, Json{{"dtype", plan.dtype},
                               {"steps", plan.training.steps},
                               {"tolerance", plan.tolerance},
                               {"equal", held == compared},
                               {"cells", list}});
    if (!plan.markdown.empty()) write_output_file(plan.markdown, markdown_of(sheet));
    return held == compared ? 0 : 1;
  });
}

}  // namespace lockstep::inline v0::engine
