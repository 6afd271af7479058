#include "lockstep/report/run_result.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"

namespace lockstep::inline v0 {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kMost = 1e15;  // limit of all numbers here; whole numbers stay exact

std::vector<double> read_losses(const JsonObject& fields) {
  std::vector<double> losses;
  for (const nlohmann::json& loss : fields.list("losses")) {
    losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN()  // JSON has no NaN
                                    : number_of(loss, fields.path("losses"), refuse_as<DataError>,
                                                -kMost, kMost));
  }
  return losses;
}

const nlohmann::json& list_or_empty(const JsonObject& fields, const char* name) {
  static const nlohmann::json empty = nlohmann::json::array();
  return fields.has(name) ? fields.list(name) : empty;
}

std::vector<RunEvaluation> read_evaluations(const JsonObject& fields) {
  std::vector<RunEvaluation> evaluations;
  for (const nlohmann::json& one : list_or_empty(fields, "evaluations")) {
    const JsonObject inner(one, fields.source(), refuse_as<DataError>, "evaluations");
    evaluations.push_back(
        {.step = inner.whole("step", 0),
         .loss = inner.number_or(std::numeric_limits<double>::quiet_NaN(), "loss", 0, kMost),
         .accuracy = inner.number("accuracy", 0, 1)});
  }
  return evaluations;
}

std::optional<ConfusionMatrix> read_confusion(const JsonObject& fields) {
  const nlohmann::json& rows = list_or_empty(fields, "confusion");
  if (rows.empty()) return std::nullopt;
  std::vector<std::string> labels;
  for (const nlohmann::json& label : list_or_empty(fields, "labels")) {
    if (!label.is_string()) fields.refuse("labels", "a text for each class");
    labels.push_back(label);
  }
  const std::string size = std::to_string(labels.size());
  if (rows.size() != labels.size())
    fields.refuse("confusion", "a row for each of the " + size + " labels");
  std::vector<int64_t> counts;
  for (const nlohmann::json& row : rows) {
    if (!row.is_array() || row.size() != labels.size())
      fields.refuse("confusion", "rows of " + size + " counts");
    for (const nlohmann::json& count : row)
      counts.push_back(whole_of(count, fields.path("confusion"), refuse_as<DataError>, 0));
  }
  return ConfusionMatrix(std::move(labels), std::move(counts));
}

std::optional<std::array<double, kStepParts.size()>> read_parts(const JsonObject& fields) {
  if (!fields.has("parts_s")) return std::nullopt;
  const JsonObject inner = fields.object("parts_s");
  std::array<double, kStepParts.size()> result{};
  for (size_t i = 0; i < kStepParts.size(); ++i)
    result[i] = inner.number_or(0, kStepParts[i], 0, kMost);
  return result;
}

std::optional<double> number_if_there(const JsonObject& fields, const char* name, double most) {
  if (!fields.has(name)) return std::nullopt;
  return fields.number(name, 0, most);
}

Json evaluations_json(const std::vector<RunEvaluation>& evaluations) {
  Json json = Json::array();
  for (const RunEvaluation& one : evaluations)
    json.push_back({{"step", one.step}, {"loss", one.loss}, {"accuracy", one.accuracy}});
  return json;
}

void put_confusion(Json& json, const ConfusionMatrix& matrix) {
  json["labels"] = matrix.labels();
  Json rows = Json::array();
  for (size_t truth = 0; truth < matrix.classes(); ++truth) {
    Json row = Json::array();
    for (size_t predicted = 0; predicted < matrix.classes(); ++predicted)
      row.push_back(matrix.at(truth, predicted));
    rows.push_back(std::move(row));
  }
  json["confusion"] = std::move(rows);
}

}  // namespace

nlohmann::ordered_json to_json(const RunResult& result) {
  Json json{{"method", result.method},         {"nproc", result.nproc},
            {"model", result.model},           {"dtype", result.dtype},
            {"padding", result.padding},       {"steps", result.steps},
            {"epochs", result.epochs},         {"samples", result.samples},
            {"batch_size", result.batch_size}, {"seconds", result.seconds},
            {"minutes", result.seconds / 60},  {"samples_per_s", result.samples_per_s}};
  const auto put = [&](const char* name, const std::optional<double>& value) {
    if (value) json[name] = *value;
  };
  put("startup_s", result.startup_s);
  json["losses"] = result.losses;
  json["evaluations"] = evaluations_json(result.evaluations);
  put("dev_loss", result.dev_loss);
  put("dev_accuracy", result.dev_accuracy);
  put("macro_f1", result.macro_f1);
  put("weighted_f1", result.weighted_f1);
  if (result.confusion) put_confusion(json, *result.confusion);
  json["peak_memory_mib"] = result.peak_memory_mib;
  if (result.parts_s) {
    for (size_t i = 0; i < kStepParts.size(); ++i)
      json["parts_s"][kStepParts[i]] = (*result.parts_s)[i];
  }
  json["checkpoint"] = result.checkpoint;
  return json;
}

RunResult run_result_of(const nlohmann::json& json, const std::string& where) {
  const JsonObject fields(json, where, refuse_as<DataError>);
  RunResult result;
  result.method = fields.text("method");
  result.nproc = fields.whole("nproc", 1);
  result.model = fields.text("model", "");
  result.dtype = fields.text("dtype", "");
  result.padding = fields.text("padding", "");
  result.steps = fields.whole("steps", 0);
  result.epochs = fields.number_or(0, "epochs", 0, kMost);
  result.samples = fields.whole("samples", 0);
  result.batch_size = fields.whole_or(0, "batch_size", 0);
  result.seconds = fields.number("seconds", 0, kMost);
  result.samples_per_s = fields.number("samples_per_s", 0, kMost);
  result.startup_s = number_if_there(fields, "startup_s", kMost);
  result.losses = read_losses(fields);
  result.evaluations = read_evaluations(fields);
  result.dev_loss = number_if_there(fields, "dev_loss", kMost);
  result.dev_accuracy = number_if_there(fields, "dev_accuracy", 1);
  result.macro_f1 = number_if_there(fields, "macro_f1", 1);
  result.weighted_f1 = number_if_there(fields, "weighted_f1", 1);
  result.confusion = read_confusion(fields);
  const nlohmann::json* peak = fields.find("peak_memory_mib");
  if (peak != nullptr && peak->is_number()) {
    result.peak_memory_mib = {fields.number("peak_memory_mib", 0, kMost)};
  } else {
    for (const nlohmann::json& one : list_or_empty(fields, "peak_memory_mib")) {
      result.peak_memory_mib.push_back(
          number_of(one, fields.path("peak_memory_mib"), refuse_as<DataError>, 0, kMost));
    }
  }
  result.parts_s = read_parts(fields);
  result.checkpoint = fields.text("checkpoint", "");
  return result;
}

RunResult parse_run_result(const std::string& text, const std::string& where) {
  return run_result_of(parse_json(text, where, refuse_as<DataError>), where);
}

}  // namespace lockstep::inline v0
