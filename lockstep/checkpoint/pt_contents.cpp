#include "lockstep/checkpoint/pt_contents.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lockstep/checkpoint/pickle_reader.h"
#include "lockstep/checkpoint/pt_archive.h"
#include "lockstep/checkpoint/pt_tensors.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace {

// Where training scripts put the model's dict.
constexpr const char* kWrappers[] = {"state_dict", "model_state_dict", "model", "module",
                                     "net",        "weights"};
constexpr int kDeepestWrapper = 2;  // {"model": {"state_dict": ...}}

// The first bytes of a pickle of torch.save before 1.6: protocol 2 and its magic number.
constexpr std::string_view kLegacyStart =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

bool is_legacy(std::span<const std::byte> bytes) {
  return bytes.size() >= kLegacyStart.size() &&
         std::memcmp(bytes.data(), kLegacyStart.data(), kLegacyStart.size()) == 0;
}

// A number or a short text as text; "" for anything else.
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
      const char* key = wrapper_of(*dict, kDeepestWrapper - depth);
      if (key == nullptr) break;
      contents_.found_in += (depth == 0 ? "" : ".") + std::string(key);
      const PickleValue* inner = pickle_.find(*dict, key);
      add(*dict, inner, /*tensors=*/false);
      dict = inner;
    }
    if (!has_tensors(*dict)) no_tensors();
    add(*dict, nullptr, /*tensors=*/true);
    for (auto& [name, tensor] : found_) contents_.tensors.push_back(std::move(tensor));
    return std::move(contents_);
  }

 private:
  [[noreturn]] void no_tensors() const {
    const PickleValue& root = pickle_[pickle_.root];
    std::vector<std::string> keys;
    constexpr size_t kMost = 8;
    for (size_t i = 0; i < root.items.size() && keys.size() < kMost; i += 2) {
      if (root.kind == PickleKind::kDict && pickle_[root.items[i]].kind == PickleKind::kText)
        keys.push_back(shown(pickle_[root.items[i]].text));
    }
    archive_.fail("holds no dict of tensors" +
                  (keys.empty() ? std::string() : ", only the keys " + joined(keys)) +
                  "; write one with torch.save(model.state_dict(), path)");
  }

  bool has_tensors(const PickleValue& value) const {
    if (value.kind != PickleKind::kDict) return false;
    for (size_t i = 1; i < value.items.size(); i += 2) {
      if (PtTensors::is_tensor(pickle_[value.items[i]])) return true;
    }
    return false;
  }

  // The key of the dict in `dict` that is the state dict, or leads to it; or nullptr.
  const char* wrapper_of(const PickleValue& dict, int depth) const {
    if (depth == 0) return nullptr;
    for (const char* key : kWrappers) {
      const PickleValue* inner = pickle_.find(dict, key);
      if (inner != nullptr && (has_tensors(*inner) || wrapper_of(*inner, depth - 1) != nullptr))
        return key;
    }
    return nullptr;
  }

  // What `dict` holds, but for the value `besides`.
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

}  // namespace lockstep
