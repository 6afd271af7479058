#include "lockstep/checkpoint/pt_contents.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>

#include "lockstep/checkpoint/pickle_reader.h"
#include "lockstep/checkpoint/pt_archive.h"
#include "lockstep/checkpoint/pt_tensors.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

// The keys under which training scripts put the model's dict.
constexpr const char* kWrappers[] = {"state_dict", "model_state_dict", "model", "module",
                                     "net",        "weights"};
constexpr int kDeepestWrapper = 2;  // {"model": {"state_dict": ...}}

// The first bytes of torch.save's pickles before 1.6: protocol 2 and the magic number.
constexpr std::string_view kLegacyStart =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

bool is_legacy(std::span<const std::byte> bytes) {
  return bytes.size() >= kLegacyStart.size() &&
         std::memcmp(bytes.data(), kLegacyStart.data(), kLegacyStart.size()) == 0;
}

// A number or a short text as text; "" for other values.
std::string scalar_text(const PickleValue& value) {
  constexpr size_t kLongest = 1000;
  char text[32];
  switch (value.kind) {
    case PickleKind::kText:
      return std::string(value.text.substr(0, value.text.size() <= kLongest ? kLongest : 0));
    case PickleKind::kInteger:
      return std::to_string(value.integer);
    case PickleKind::kBool:
      return value.integer != 0 ? "true" : "false";
    case PickleKind::kFloat:
      return {text, std::to_chars(text, std::end(text), value.number).ptr};
    default:
      return "";
  }
}

// Finds the state dict among a pickle's values.
class PtReader {
 public:
  explicit PtReader(const PtArchive& archive)
      : archive_(archive),
        pickle_(read_pickle(archive.member("data.pkl"), pt_globals(), archive.file())),
        tensors_(archive, pickle_) {}

  PtContents read() {
    const PickleValue* dict = &pickle_[pickle_.root];
    for (int depth = 0; depth < kDeepestWrapper; ++depth) {
      const auto key = wrapper_of(*dict, kDeepestWrapper - depth);
      if (!key) break;
      contents_.found_in += (depth == 0 ? "" : ".") + std::string(*key);
      const PickleValue* inner = pickle_.find(*dict, *key);
      add(*dict, inner, /*tensors=*/false);
      dict = inner;
    }
    if (!has_tensors(*dict) || (contents_.found_in.empty() && has_several(*dict)))
      no_tensors(*dict);
    add(*dict, nullptr, /*tensors=*/true);
    for (auto& [name, tensor] : found_) contents_.tensors.push_back(std::move(tensor));
    return std::move(contents_);
  }

 private:
  enum class Found : uint8_t { kUnknown, kYes, kNo };

  [[noreturn]] void no_tensors(const PickleValue& root) const {
    std::vector<std::string> keys;
    for (const std::string_view key : keys_of_tensors(root, kDeepestWrapper))
      keys.push_back(shown(key));
    if (keys.size() > 1) {
      archive_.fail("holds several dicts of tensors, under " + joined(keys) +
                    "; write the one that is meant with torch.save(torch.load(path)[key], path)");
    }
    constexpr size_t kMost = 8;
    for (size_t i = 0; i < root.items.size() && keys.size() < kMost; i += 2) {
      if (root.kind == PickleKind::kDict && pickle_[root.items[i]].kind == PickleKind::kText)
        keys.push_back(shown(pickle_[root.items[i]].text));
    }
    archive_.fail("holds no dict of tensors" +
                  (keys.empty() ? std::string() : ", only the keys " + joined(keys)) +
                  "; write one with torch.save(model.state_dict(), path)");
  }

  size_t tensors_in(const PickleValue& value) const {
    size_t count = 0;
    for (size_t i = 1; value.kind == PickleKind::kDict && i < value.items.size(); i += 2)
      count += PtTensors::is_tensor(pickle_[value.items[i]]) ? 1 : 0;
    return count;
  }
  bool has_tensors(const PickleValue& value) const { return tensors_in(value) > 0; }

  // Whether the tensors of `dict` itself, such as a generator's state, only accompany those of the
  // dict at `key`.
  bool is_beside(const PickleValue& dict, std::string_view key) const {
    return !has_tensors(dict) || tensors_in(dict) < tensors_in(*pickle_.find(dict, key));
  }

  // Whether it is a dict with tensors, or leads to one. Computed once per value, because a hostile
  // pickle may refer to the same dict a million times.
  bool leads_to_tensors(const PickleValue& value, int depth) const {
    std::vector<Found>& known = known_[static_cast<size_t>(depth)];
    known.resize(pickle_.values.size(), Found::kUnknown);
    Found& found = known[static_cast<size_t>(&value - pickle_.values.data())];
    if (found == Found::kUnknown)
      found = has_tensors(value) || wrapper_of(value, depth) ? Found::kYes : Found::kNo;
    return found == Found::kYes;
  }

  // Whether the state dict is one of several in `dict`, with its own tensors beside them. The first
  // few decide.
  bool has_several(const PickleValue& dict) const {
    constexpr size_t kMost = 8;
    const auto keys = keys_of_tensors(dict, kDeepestWrapper);
    const auto first = std::span(keys).first(std::min(keys.size(), kMost));
    return keys.size() > 1 && std::any_of(first.begin(), first.end(), [&](std::string_view key) {
             return is_beside(dict, key);
           });
  }

  // The dicts in `dict` that could be the state dict, or lead to it.
  std::vector<std::string_view> keys_of_tensors(const PickleValue& dict, int depth) const {
    std::vector<std::string_view> keys;
    if (depth == 0 || dict.kind != PickleKind::kDict) return keys;
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      const PickleValue& key = pickle_[dict.items[i]];
      if (key.kind == PickleKind::kText && leads_to_tensors(pickle_[dict.items[i + 1]], depth - 1))
        keys.push_back(key.text);
    }
    return keys;
  }

  // The key in `dict` of the state dict, or of a dict that leads to it: a usual key, or the only
  // one.
  std::optional<std::string_view> wrapper_of(const PickleValue& dict, int depth) const {
    if (depth == 0) return std::nullopt;
    for (const char* key : kWrappers) {
      const PickleValue* inner = pickle_.find(dict, key);
      if (inner != nullptr && leads_to_tensors(*inner, depth - 1)) return key;
    }
    const auto keys = keys_of_tensors(dict, depth);
    return keys.size() == 1 && is_beside(dict, keys.front()) ? std::optional(keys.front())
                                                             : std::nullopt;
  }

  // Adds the contents of `dict`, except the value `besides`.
  void add(const PickleValue& dict, const PickleValue* besides, bool tensors) {
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      const PickleValue &key = pickle_[dict.items[i]], &value = pickle_[dict.items[i + 1]];
      if (&value == besides) continue;
      const bool named = key.kind == PickleKind::kText;
      const std::string name(key.text);
      if (tensors && PtTensors::is_tensor(value)) {
        if (!named) tensors_.damaged("has a tensor without a name");
        found_.insert_or_assign(name, tensors_.read(value, name));
      } else if (named) {
        const std::string text = scalar_text(value);
        if (!text.empty())
          contents_.metadata[name] = text;
        else
          contents_.left_out.push_back(name);
      }
    }
  }

  const PtArchive& archive_;
  Pickle pickle_;
  PtTensors tensors_;
  PtContents contents_;
  mutable std::vector<Found> known_[kDeepestWrapper];  // by remaining depth, and value
  std::map<std::string, PtTensor> found_;
};

}  // namespace

bool looks_like_pt(std::span<const std::byte> bytes) {
  return looks_like_zip(bytes) || is_legacy(bytes);
}

PtContents parse_pt(std::span<const std::byte> bytes, const std::string& file) {
  if (is_legacy(bytes)) {
    throw CheckpointError(
        file +
        ": is in torch.save's form from before PyTorch 1.6; load it in Python and "
        "write it again with torch.save(model.state_dict(), path)");
  }
  if (!looks_like_zip(bytes))
    throw CheckpointError(file + ": is no file of torch.save: it is not a zip archive");
  return PtReader(PtArchive(bytes, file)).read();
}

}  // namespace lockstep::inline v0
