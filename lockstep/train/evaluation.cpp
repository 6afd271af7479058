#include "lockstep/train/evaluation.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/zeros.h>

namespace lockstep::inline v0 {

ClassifierCounts::ClassifierCounts(int64_t classes)
    : classes_(classes), confusion_(at::zeros({classes * classes}, at::kLong)) {}

void ClassifierCounts::add(const at::Tensor& log_probabilities, const at::Tensor& target) {
  const at::Tensor predicted = log_probabilities.argmax(1);
  confusion_ += at::bincount(target * classes_ + predicted, {}, classes_ * classes_).cpu();
  loss_ -= log_probabilities.gather(1, target.unsqueeze(1)).sum(at::kDouble).item<double>();
}

Evaluation ClassifierCounts::reduce(Communicator& comm) const {
  const at::Tensor confusion = confusion_.clone();
  const at::Tensor loss = at::zeros({1}, at::kDouble).fill_(loss_);
  comm.all_reduce(confusion);
  comm.all_reduce(loss);
  const int64_t* counts = confusion.const_data_ptr<int64_t>();

  Evaluation result;
  int64_t correct = 0;
  for (int64_t truth = 0; truth < classes_; ++truth) {
    result.confusion.emplace_back(counts + truth * classes_, counts + (truth + 1) * classes_);
    for (const int64_t count : result.confusion.back()) result.samples += count;
    correct += result.confusion.back()[static_cast<size_t>(truth)];
  }
  if (result.samples > 0) {
    result.accuracy = static_cast<double>(correct) / static_cast<double>(result.samples);
    result.loss = loss.item<double>() / static_cast<double>(result.samples);
  }
  return result;
}

}  // namespace lockstep::inline v0
