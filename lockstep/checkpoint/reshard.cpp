#include "lockstep/checkpoint/reshard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/internal/checkpoint_files.h"
#include "lockstep/checkpoint/internal/partial_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kMostFiles = 99999;  // five digits

// Elements of a tensor; mapped if a single slice has them.
at::Tensor elements(const SlicedTensor& tensor, int64_t begin, int64_t end) {
  for (const TensorSlice& slice : tensor.slices) {
    if (slice.box.whole() && slice.begin <= begin && end <= slice.end())
      return slice.values.narrow(0, begin - slice.begin, end - begin);
  }
  at::Tensor values = at::empty({end - begin}, tensor.dtype);
  tensor.read(begin, values);
  return values;
}

// Part `index` of `count` of every tensor; a tensor with fewer elements is in the first part as a
// whole.
SlicedTensors part_of(const SlicedTensors& whole, int index, int count) {
  SlicedTensors part;
  part.metadata = whole.metadata;
  for (const auto& [name, tensor] : whole.tensors) {
    const int64_t numel = tensor.numel(), parts = numel < count ? 1 : count;
    if (index >= parts) continue;
    const int64_t begin = numel / parts * index + std::min<int64_t>(index, numel % parts);
    const int64_t end = begin + numel / parts + (index < numel % parts ? 1 : 0);
    part.tensors.emplace(
        name, slice_of(tensor.sizes, tensor.strides, begin, elements(tensor, begin, end)));
  }
  return part;
}

// Assigns whole tensors, by name, each to the file with the fewest bytes so far.
std::vector<std::vector<std::string>> dealt(const SlicedTensors& whole, int count) {
  std::vector<std::vector<std::string>> parts(static_cast<size_t>(count));
  std::vector<int64_t> bytes(parts.size(), 0);
  for (const auto& [name, tensor] : whole.tensors) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += tensor.numel() * static_cast<int64_t>(c10::elementSize(tensor.dtype));
    parts[static_cast<size_t>(least - bytes.begin())].push_back(name);
  }
  return parts;
}

Safetensors chosen(const SlicedTensors& from, const std::vector<std::string>& names) {
  Safetensors result{.tensors = {}, .metadata = from.metadata};
  for (const std::string& name : names) result.tensors.emplace_back(name, from.find(name)->whole());
  return result;
}

// The targets of links would be written into the new checkpoint: only links within its own folder
// are allowed.
void check_links(const std::filesystem::path& from) {
  namespace fs = std::filesystem;
  const fs::path at = checkpoint_at(from);
  if (!fs::is_directory(at)) return;
  const fs::path folder = fs::canonical(at);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_symlink() || fs::weakly_canonical(entry.path()).parent_path() == folder) continue;
    throw CheckpointError((from / printable(entry.path().filename().string())).string() +
                          ": is a symbolic link out of the checkpoint, which is not followed; put "
                          "a copy of the file in its place");
  }
}

}  // namespace

void reshard_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to,
                        int files) {
  if (files < 1 || files > kMostFiles)
    throw InvalidArgument("reshard_checkpoint: " + std::to_string(files) +
                          " files cannot be; give 1 to " + std::to_string(kMostFiles));
  check_links(from);
  const at::NoGradGuard no_grad;
  const Checkpoint whole = read_checkpoint(from, CheckpointParts::kAll, ModelForm::kSlices);
  internal::PartialDirectory fresh(to, internal::new_attempt());
  if (files == 1) {
    internal::write_alone(fresh.directory(), whole);
    fresh.publish();
    return;
  }
  const auto models = dealt(whole.model_slices, files);
  std::vector<bool> has_model, has_state;
  const bool divided =
      std::any_of(whole.optimizer.tensors.begin(), whole.optimizer.tensors.end(),
                  [&](const auto& entry) { return entry.second.numel() >= files; });
  for (int i = 0; i < files; ++i) {
    has_model.push_back(!models[static_cast<size_t>(i)].empty());
    has_state.push_back(divided || (i == 0 && !whole.optimizer.tensors.empty()));
  }
  const auto model_turns = internal::turns_of(has_model), turns = internal::turns_of(has_state);
  internal::FilesUnderWay under_way(fresh.directory());
  std::vector<internal::WrittenShare> written;
  for (int i = 0; i < files; ++i) {
    const auto n = static_cast<size_t>(i);
    Checkpoint share;
    share.model = chosen(whole.model_slices, models[n]);
    share.optimizer = part_of(whole.optimizer, i, files);
    written.push_back(internal::write_share(
        under_way, internal::share_to_write(share, model_turns[n], turns[n], /*in_slices=*/false)));
    under_way.commit();  // otherwise too many would be open
  }
  internal::write_rest(under_way, internal::rest_to_write(whole), written);
  under_way.commit();
  fresh.publish();
}

}  // namespace lockstep::inline v0
