#include "lockstep/train/tensorboard_callback.h"

#include <span>

namespace lockstep::inline v0 {

void TensorBoardCallback::on_log(const TrainerState& state, const LogEvent& event) {
  writer_.add_scalar("loss/train", event.loss, state.step);
  writer_.add_scalar("samples_per_s", event.samples_per_s, state.step);
  for (const auto& [name, value] : event.figures) writer_.add_scalar(name, value, state.step);
}

void TensorBoardCallback::on_epoch(const TrainerState& state, const EpochEvent& event) {
  writer_.add_scalar("loss/epoch", event.loss, state.step);
  if (event.evaluation) {
    writer_.add_scalar("loss/test", event.evaluation->loss, state.step);
    writer_.add_scalar("accuracy/test", event.evaluation->accuracy, state.step);
    for (const auto& [name, value] : event.evaluation->metrics)
      writer_.add_scalar(name + "/test", value, state.step);
  }
  writer_.flush();
}

void add_histogram(TensorBoardWriter& writer, std::string_view tag, const at::Tensor& tensor,
                   int64_t step) {
  const at::Tensor values = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  writer.add_histogram(
      tag, std::span(values.const_data_ptr<double>(), static_cast<size_t>(values.numel())), step);
}

}  // namespace lockstep::inline v0
