#include "lockstep/train/metrics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <charconv>
#include <cmath>

namespace lockstep::inline v0 {
namespace {

// 1.0, 0.5525, 1.1885839700698853, as Python's repr().
std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  const bool plain = value == 0 || (std::abs(value) >= 1e-4 && std::abs(value) < 1e16);
  const auto end =
      plain ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr
            : std::to_chars(text, text + sizeof text, value).ptr;
  std::string digits(text, end);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

// Ranks without a sample do not know the shape of a row; they learn it from the others.
at::Tensor gather_rows(Communicator& comm, const at::Tensor& rows, int64_t width,
                       at::ScalarType dtype) {
  at::Tensor mine = rows;
  if (!mine.defined()) mine = at::empty({0, width}, at::TensorOptions().dtype(dtype));
  return comm.all_gatherv(mine.to(dtype).reshape({-1, width}).cpu());
}

}  // namespace

std::optional<double> find_metric(const Metrics& metrics, std::string_view name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::string to_text(const Metrics& metrics) {
  std::string text = "{";
  for (const auto& [name, value] : metrics) {
    if (text.size() > 1) text += ", ";
    text += "'" + name + "': " + python_number(value);
  }
  return text + "}";
}

EvalPrediction gather_predictions(Communicator& comm, const EvalPrediction& mine) {
  const bool any = mine.predictions.defined();
  const int64_t width =
      any && mine.predictions.size(0) > 0 ? mine.predictions.numel() / mine.predictions.size(0) : 0;
  const at::Tensor widest = at::empty({1}, at::TensorOptions().dtype(at::kLong)).fill_(width);
  comm.all_reduce(widest, ReduceOp::kMax);
  at::Tensor predictions;
  if (const auto wide = widest.item<int64_t>(); wide > 0)
    predictions = gather_rows(comm, mine.predictions, wide, at::kFloat);
  return {.predictions = predictions,
          .label_ids = gather_rows(comm, mine.label_ids, 1, at::kLong).flatten()};
}

Evaluation count_classes(const EvalPrediction& prediction) {
  const int64_t classes = prediction.predictions.size(1);
  const at::Tensor predicted = prediction.predictions.argmax(1).cpu();
  const at::Tensor labels = prediction.label_ids.cpu();
  Evaluation result;
  result.confusion.assign(static_cast<size_t>(classes),
                          std::vector<int64_t>(static_cast<size_t>(classes), 0));
  int64_t correct = 0;
  const auto* truth = labels.const_data_ptr<int64_t>();
  const auto* guess = predicted.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < predicted.size(0); ++i) {
    if (truth[i] < 0 || truth[i] >= classes) continue;  // the label is unknown
    ++result.confusion[static_cast<size_t>(truth[i])][static_cast<size_t>(guess[i])];
    ++result.samples;
    if (truth[i] == guess[i]) ++correct;
  }
  if (result.samples > 0)
    result.accuracy = static_cast<double>(correct) / static_cast<double>(result.samples);
  return result;
}

}  // namespace lockstep::inline v0
