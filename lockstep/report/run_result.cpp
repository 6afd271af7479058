#include "lockstep/report/run_result.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kMost = 1e15;  // of any number here; whole ones stay exact

// Takes fields out of an object, and says what is wrong with one.
class FieldReader {
 public:
  FieldReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) throw DataError(where_ + " is no result: a JSON object is expected");
  }

  [[noreturn]] void refuse(const std::string& name, const Json& value,
                           const std::string& expected) const {
    // A list or an object is named, not shown: it may be of any length and depth.
    std::string shown =
        value.is_structured()
            ? std::string("an ") + value.type_name() + " of " + std::to_string(value.size())
            : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (shown.size() > 40) shown = shown.substr(0, 37) + "...";
    throw DataError(where_ + ": field '" + name + "' is " + shown + "; " + expected +
                    " is expected");
  }
  // nullptr: absent, or null.
  const Json* find(const std::string& name) const {
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& at(const std::string& name) const {
    const Json* value = find(name);
    if (value == nullptr) throw DataError(where_ + ": field '" + name + "' is missing");
    return *value;
  }

  std::string text(const std::string& name) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(name, *value, "a text");
    return *value;
  }
  double number(const std::string& name, const Json& value, double low, double high) const {
    if (!value.is_number() || !(value >= low && value <= high)) {
      const bool open = high == kMost;
      refuse(name, value,
             open ? "a number of 0 or more"
                  : "a number within " + Json(low).dump() + " and " + Json(high).dump());
    }
    return value;
  }
  double number(const std::string& name) const { return number(name, at(name), 0, kMost); }
  std::optional<double> number_if_there(const std::string& name, double high) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    return number(name, *value, 0, high);
  }
  int64_t whole(const std::string& name, const Json& value, int64_t low) const {
    if (!value.is_number_integer() || !(value >= low && value <= kMost))
      refuse(name, value, "a whole number of " + std::to_string(low) + " or more");
    return value;
  }
  int64_t whole(const std::string& name, int64_t low) const { return whole(name, at(name), low); }
  // Empty if absent.
  Json list(const std::string& name) const {
    const Json* value = find(name);
    if (value == nullptr) return Json::array();
    if (!value->is_array()) refuse(name, *value, "a list");
    return *value;
  }

  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

std::vector<double> read_losses(const FieldReader& fields) {
  fields.at("losses");
  std::vector<double> losses;
  for (const Json& loss : fields.list("losses")) {
    if (loss.is_null())  // JSON has no NaN
      losses.push_back(std::numeric_limits<double>::quiet_NaN());
    else
      losses.push_back(fields.number("losses", loss, -kMost, kMost));
  }
  return losses;
}

std::vector<RunEvaluation> read_evaluations(const FieldReader& fields) {
  std::vector<RunEvaluation> evaluations;
  for (const Json& one : fields.list("evaluations")) {
    const FieldReader inner(one, fields.where() + ": evaluations");
    evaluations.push_back({.step = inner.whole("step", 0),
                           .loss = inner.number_if_there("loss", kMost)
                                       .value_or(std::numeric_limits<double>::quiet_NaN()),
                           .accuracy = inner.number("accuracy", inner.at("accuracy"), 0, 1)});
  }
  return evaluations;
}

std::optional<ConfusionMatrix> read_confusion(const FieldReader& fields) {
  const Json rows = fields.list("confusion");
  if (rows.empty()) return std::nullopt;
  std::vector<std::string> labels;
  for (const Json& label : fields.list("labels")) {
    if (!label.is_string()) fields.refuse("labels", label, "a text for each class");
    labels.push_back(label);
  }
  const std::string size = std::to_string(labels.size());
  if (rows.size() != labels.size())
    fields.refuse("confusion", rows, "a row for each of the " + size + " labels");
  std::vector<int64_t> counts;
  for (const Json& row : rows) {
    if (!row.is_array() || row.size() != labels.size())
      fields.refuse("confusion", row, "a row of " + size + " counts");
    for (const Json& count : row) counts.push_back(fields.whole("confusion", count, 0));
  }
  return ConfusionMatrix(std::move(labels), std::move(counts));
}

std::optional<std::array<double, kStepParts.size()>> read_parts(const FieldReader& fields) {
  const Json* parts = fields.find("parts_s");
  if (parts == nullptr) return std::nullopt;
  const FieldReader inner(*parts, fields.where() + ": parts_s");
  std::array<double, kStepParts.size()> result{};
  for (size_t i = 0; i < kStepParts.size(); ++i)
    result[i] = inner.number_if_there(kStepParts[i], kMost).value_or(0);
  return result;
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

RunResult run_result_of(const nlohmann::ordered_json& json, const std::string& where) {
  const FieldReader fields(json, where);
  fields.at("method");
  RunResult result;
  result.method = fields.text("method");
  result.nproc = fields.whole("nproc", 1);
  result.model = fields.text("model");
  result.dtype = fields.text("dtype");
  result.padding = fields.text("padding");
  result.steps = fields.whole("steps", 0);
  result.epochs = fields.number_if_there("epochs", kMost).value_or(0);
  result.samples = fields.whole("samples", 0);
  if (const Json* batch = fields.find("batch_size"))
    result.batch_size = fields.whole("batch_size", *batch, 0);
  result.seconds = fields.number("seconds");
  result.samples_per_s = fields.number("samples_per_s");
  result.startup_s = fields.number_if_there("startup_s", kMost);
  result.losses = read_losses(fields);
  result.evaluations = read_evaluations(fields);
  result.dev_loss = fields.number_if_there("dev_loss", kMost);
  result.dev_accuracy = fields.number_if_there("dev_accuracy", 1);
  result.macro_f1 = fields.number_if_there("macro_f1", 1);
  result.weighted_f1 = fields.number_if_there("weighted_f1", 1);
  result.confusion = read_confusion(fields);
  const Json* peak = fields.find("peak_memory_mib");
  for (const Json& one : peak && peak->is_number() ? Json{*peak} : fields.list("peak_memory_mib"))
    result.peak_memory_mib.push_back(fields.number("peak_memory_mib", one, 0, kMost));
  result.parts_s = read_parts(fields);
  result.checkpoint = fields.text("checkpoint");
  return result;
}

RunResult parse_run_result(const std::string& text, const std::string& where) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    std::string why = error.what();  // "[json.exception.parse_error.101] parse error at ..."
    why = why.substr(why.find("] ") == std::string::npos ? 0 : why.find("] ") + 2);
    for (char& c : why) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    throw DataError(where + " is no JSON: " + why);
  }
  return run_result_of(json, where);
}

}  // namespace lockstep
