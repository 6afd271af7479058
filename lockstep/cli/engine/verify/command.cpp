#include "lockstep/cli/engine/verify/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/report/progress_bar.h"
#include "lockstep/report/table.h"
#include "lockstep/verify/equality_matrix.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyArguments {
  std::string dtype = "float64", json, markdown, mesh, schedule = "1f1b";
  int ranks = 8, zero = 0, micro_batches = 0;
  int64_t steps = 20;
  double tolerance = 0;  // 0: the type's
  bool matrix = false, repeat = false, divided_rows = false;
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return value == 0 ? "0" : std::isfinite(value) ? text : "not comparable";
}

// What a cell says: the figure, why there is none, or what is wrong.
std::string verdict(const EqualityCell& cell, double tolerance) {
  if (!cell.refused.empty()) return "refused";
  std::string text = short_number(cell.result.most());
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

// A row a product, a column a model.
std::vector<std::vector<std::string>> rows_of(const std::vector<EqualityCell>& cells,
                                              const std::vector<EqualityModel>& models,
                                              size_t products, double tolerance) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < products; ++i) {
    std::vector<std::string> row{to_string(cells[i].product),
                                 std::to_string(cells[i].product.ranks)};
    for (size_t model = 0; model < models.size(); ++model)
      row.push_back(verdict(cells[model * products + i], tolerance));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string as_markdown(const std::vector<EqualityModel>& models,
                        const std::vector<std::vector<std::string>>& rows) {
  std::ostringstream out;
  out << "| product | ranks |";
  for (const EqualityModel& model : models) out << " " << model.name << " |";
  out << "\n|---|---|";
  for (size_t i = 0; i < models.size(); ++i) out << "---|";
  for (const auto& row : rows) {
    out << "\n|";
    for (const std::string& cell : row) out << " " << cell << " |";
  }
  out << "\n";
  return out.str();
}

std::vector<EqualityProduct> products_of(const VerifyArguments& arguments) {
  if (arguments.mesh.empty()) return equality_products(arguments.ranks);
  LmParallelism how = parse_parallelism(arguments.mesh);
  how.zero = arguments.zero;
  how.schedule = arguments.schedule;
  how.micro_batches = arguments.micro_batches;
  how.divides_rows = arguments.divided_rows;
  int ranks = 1;
  for (const MeshAxis& axis : how.axes) ranks *= std::max(axis.size, 1);
  if (ranks > arguments.ranks)
    throw InvalidArgument("--mesh " + arguments.mesh + " has " + std::to_string(ranks) +
                          " ranks; give --ranks " + std::to_string(ranks) + " to allow so many");
  return {{how, ranks}};
}

void add_options(CLI::App& app, VerifyArguments& arguments) {
  app.add_flag("--matrix", arguments.matrix, "all products that there are");
  app.add_option("--mesh", arguments.mesh, "one product instead, such as data=2,pipe=2,tensor=2");
  app.add_option("--zero", arguments.zero, "with --mesh: ZeRO's stage [0]");
  app.add_option("--schedule", arguments.schedule, "with --mesh: the pipeline's schedule [1f1b]");
  app.add_option("--micro-batches", arguments.micro_batches, "with --mesh: a step's [2 a stage]");
  app.add_flag("--divided-rows", arguments.divided_rows, "with --mesh: sequence parallelism");
  app.add_option("--ranks", arguments.ranks, "at most so many, threads of this process [8]");
  app.add_option("--steps", arguments.steps, "of training [20]");
  app.add_option("--dtype", arguments.dtype, "float64 or float32 [float64]");
  app.add_option("--tolerance", arguments.tolerance,
                 "what is equal, relatively [1e-10, in float32 1e-5]");
  app.add_flag("--repeat", arguments.repeat, "each twice: the same bits?");
  app.add_option("--json", arguments.json, "also write the figures to this file");
  app.add_option("--markdown", arguments.markdown, "also write the table to this file");
}

void check_arguments(const VerifyArguments& arguments) {
  if (arguments.matrix != arguments.mesh.empty())
    throw InvalidArgument("give --matrix for all products, or --mesh for one");
  if (arguments.matrix && (arguments.zero != 0 || arguments.schedule != "1f1b" ||
                           arguments.micro_batches != 0 || arguments.divided_rows))
    throw InvalidArgument(
        "--zero, --schedule, --micro-batches and --divided-rows are of one product: give --mesh "
        "in the place of --matrix");
  if (arguments.dtype != "float64" && arguments.dtype != "float32")
    throw InvalidArgument("--dtype " + arguments.dtype + ": give float64 or float32");
  if (arguments.ranks < 1 || arguments.ranks > 64) throw InvalidArgument("--ranks: give 1 to 64");
  if (arguments.steps < 1) throw InvalidArgument("--steps: give 1 or more");
  if (!(arguments.tolerance >= 0 && std::isfinite(arguments.tolerance)))
    throw InvalidArgument("--tolerance: give a number from 0 on");
  check_result_files({arguments.json, arguments.markdown});
}

}  // namespace

int verify_command(const Arguments& words) {
  return run_guarded("verify", [&] {
    CLI::App app(
        "Trains small language models divided in every way, on threads of this process, and "
        "compares losses, gradients' norms and parameters with one process. Exit code 0: all are "
        "equal, 1: some are not, 2: bad usage.",
        "lockstep verify");
    VerifyArguments arguments;
    add_options(app, arguments);
    parse(app, words);
    check_arguments(arguments);
    const auto products = products_of(arguments);
    const auto& models = equality_models();
    const at::ScalarType dtype = arguments.dtype == "float64" ? at::kDouble : at::kFloat;
    const double tolerance =
        arguments.tolerance > 0 ? arguments.tolerance : default_tolerance(dtype);
    ProgressBar bar({.terminal = find_terminal(STDERR_FILENO, process_env())});
    int64_t done = 0;
    const auto cells = run_matrix(
        models, products,
        {.training = {.steps = arguments.steps, .dtype = dtype, .adam = dtype == at::kDouble},
         .repeat = arguments.repeat},
        [&](const EqualityCell& cell, size_t all) {
          bar.update({.label = cell.model + ", " + to_string(cell.product),
                      .done = ++done,
                      .total = static_cast<int64_t>(all)});
        });
    bar.finish(std::to_string(cells.size()) + " compared");
    const auto rows = rows_of(cells, models, products.size(), tolerance);
    std::vector<Column> columns{{"product", Align::kLeft}, {"ranks"}};
    for (const EqualityModel& model : models) columns.push_back({model.name, Align::kRight});
    Table table(columns);
    for (const auto& row : rows) table.add(row);
    size_t held = 0, refused = 0;
    Json list = Json::array();
    for (const EqualityCell& cell : cells) {
      held += cell.holds(tolerance) ? 1 : 0;
      refused += cell.refused.empty() ? 0 : 1;
      list.push_back(to_json(cell, tolerance));
    }
    const size_t compared = cells.size() - refused;
    if (compared == 0) throw InvalidArgument(cells.front().refused);
    std::cout << "The largest relative difference from one process after " << arguments.steps
              << " steps of " << (dtype == at::kDouble ? "AdamW" : "SGD with momentum") << ", in "
              << arguments.dtype << ":\n\n"
              << table.str() << "\n"
              << held << " of " << compared << " equal one process within "
              << short_number(tolerance);
    if (arguments.repeat) std::cout << ", and repeat in every bit";
    if (refused > 0) std::cout << "; " << refused << " are refused products";
    std::cout << "\n" << std::flush;
    write_json(arguments.json, Json{{"dtype", arguments.dtype},
                                    {"steps", arguments.steps},
                                    {"tolerance", tolerance},
                                    {"equal", held == compared},
                                    {"cells", list}});
    if (!arguments.markdown.empty())
      write_output_file(arguments.markdown, as_markdown(models, rows));
    return held == compared ? 0 : 1;
  });
}

}  // namespace lockstep::engine
