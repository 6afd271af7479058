#include "lockstep/checkpoint/pt_tensors.h"

#include <algorithm>

#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr std::string_view kUntyped = "torch.storage UntypedStorage";
constexpr std::string_view kRebuildPrefix = "torch._utils ";
constexpr std::string_view kParameter = "torch._utils _rebuild_parameter";
constexpr std::string_view kRebuildV2 = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kRebuildV3 = "torch._utils _rebuild_tensor_v3";
constexpr std::string_view kSize = "torch Size";

struct ElementType {
  std::string_view storage;  // "" where torch has no storage class of it
  std::string_view dtype;
  const char* word;
  uint64_t bytes;
};
constexpr ElementType kElements[] = {
    {"torch FloatStorage", "torch float32", "F32", 4},
    {"torch DoubleStorage", "torch float64", "F64", 8},
    {"torch HalfStorage", "torch float16", "F16", 2},
    {"torch BFloat16Storage", "torch bfloat16", "BF16", 2},
    {"torch LongStorage", "torch int64", "I64", 8},
    {"torch IntStorage", "torch int32", "I32", 4},
    {"torch ShortStorage", "torch int16", "I16", 2},
    {"torch CharStorage", "torch int8", "I8", 1},
    {"torch ByteStorage", "torch uint8", "U8", 1},
    {"torch BoolStorage", "torch bool", "BOOL", 1},
    {"torch ComplexFloatStorage", "torch complex64", "C64", 8},
    {"torch ComplexDoubleStorage", "torch complex128", "C128", 16},
    {"", "torch uint16", "U16", 2},
    {"", "torch uint32", "U32", 4},
    {"", "torch uint64", "U64", 8},
    {"", "torch float8_e4m3fn", "F8_E4M3", 1},
    {"", "torch float8_e5m2", "F8_E5M2", 1},
};

bool is_empty(const PickleValue& value) {
  return value.kind == PickleKind::kNone ||
         (value.kind == PickleKind::kDict && value.items.empty());
}

}  // namespace

std::vector<PickleGlobal> pt_globals() {
  using Use = PickleGlobal::Use;
  std::vector<PickleGlobal> globals = {{"collections OrderedDict", Use::kMakesDict},
                                       {kRebuildV2, Use::kCall},
                                       {kRebuildV3, Use::kCall},
                                       {kParameter, Use::kCall},
                                       {kSize, Use::kCall},
                                       {"torch device", Use::kCall},
                                       {kUntyped}};
  for (const ElementType& element : kElements) {
    globals.push_back({element.dtype});
    if (!element.storage.empty()) globals.push_back({element.storage});
  }
  return globals;
}

void PtTensors::damaged(const std::string& what) const {
  archive_.fail(what + "; the file is damaged or not written by torch.save");
}

bool PtTensors::is_tensor(const PickleValue& value) {
  return value.kind == PickleKind::kCall && value.text.starts_with(kRebuildPrefix);
}

const PtTensors::Values& PtTensors::arguments_of(const PickleValue& call) const {
  return pickle_[call.items[0]].items;
}

// _rebuild_parameter(tensor, requires_grad, hooks)
// _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])
// _rebuild_tensor_v3(the same six, dtype[, metadata])
PtTensor PtTensors::read(const PickleValue& value, const std::string& name) {
  const std::string where = "tensor " + shown(name);
  const PickleValue* call = &value;
  if (call->text == kParameter) {
    const Values& arguments = arguments_of(*call);
    if (arguments.empty() || !is_tensor(pickle_[arguments[0]])) damaged(where + " has no values");
    call = &pickle_[arguments[0]];
  }
  const Values& arguments = arguments_of(*call);
  const bool v3 = call->text == kRebuildV3;
  const size_t least = v3 ? 7 : 6;
  if (call->text == kParameter || arguments.size() < least || arguments.size() > least + 1)
    damaged(where + " is not described as tensors are");
  if (arguments.size() > least && !is_empty(pickle_[arguments[least]])) {
    archive_.fail(where + " is a lazy view, such as a conjugate; write it with .clone() or " +
                  ".resolve_conj()");
  }
  PtTensor tensor;
  tensor.name = name;
  const PickleValue* dtype = v3 ? &pickle_[arguments[6]] : nullptr;
  const uint64_t element_bytes = set_storage(pickle_[arguments[0]], dtype, where, &tensor);
  tensor.offset = static_cast<uint64_t>(number(pickle_[arguments[1]], where));
  tensor.sizes = numbers(pickle_[arguments[2]], where);
  tensor.strides = numbers(pickle_[arguments[3]], where);
  check_view(tensor, element_bytes, where);
  return tensor;
}

int64_t PtTensors::number(const PickleValue& value, const std::string& where) const {
  if (value.kind != PickleKind::kInteger || value.integer < 0)
    damaged(where + " has a size, stride or offset that is no whole number");
  return value.integer;
}

std::vector<int64_t> PtTensors::numbers(const PickleValue& value, const std::string& where) const {
  constexpr size_t kMostDims = 64;  // libtorch's own limit
  const PickleValue* tuple = &value;
  if (value.kind == PickleKind::kCall && value.text == kSize && arguments_of(value).size() == 1)
    tuple = &pickle_[arguments_of(value)[0]];
  if (tuple->kind != PickleKind::kTuple || tuple->items.size() > kMostDims)
    damaged(where + " has no shape");
  std::vector<int64_t> result;
  result.reserve(tuple->items.size());
  for (const uint32_t item : tuple->items) result.push_back(number(pickle_[item], where));
  return result;
}

// Persistent ids are ("storage", class, key, location, number of elements). Returns the bytes per
// element.
uint64_t PtTensors::set_storage(const PickleValue& value, const PickleValue* dtype,
                                const std::string& where, PtTensor* tensor) {
  const bool is_id = value.kind == PickleKind::kPersistent &&
                     pickle_[value.items[0]].kind == PickleKind::kTuple &&
                     pickle_[value.items[0]].items.size() >= 5;
  if (!is_id) damaged(where + " has no storage");
  const Values& id = pickle_[value.items[0]].items;
  const PickleValue &storage_class = pickle_[id[1]], &key = pickle_[id[2]];
  if (pickle_[id[0]].text != "storage" || key.kind != PickleKind::kText)
    damaged(where + " has no storage");
  const auto element =
      std::find_if(std::begin(kElements), std::end(kElements), [&](const ElementType& candidate) {
        return dtype != nullptr
                   ? candidate.dtype == dtype->text
                   : !candidate.storage.empty() && candidate.storage == storage_class.text;
      });
  if (element == std::end(kElements)) damaged(where + " has no dtype");
  const uint64_t size = static_cast<uint64_t>(number(pickle_[id[4]], where));
  const std::string_view bytes = storage(key.text);
  // The number counts bytes, or elements if the class has a dtype of its own.
  const bool untyped = storage_class.text == kUntyped;
  const bool fits = untyped ? size == bytes.size()
                            : element->storage == storage_class.text &&
                                  bytes.size() % element->bytes == 0 &&
                                  size == bytes.size() / element->bytes;
  if (!fits) {
    damaged(where + " has a storage of " + std::to_string(bytes.size()) + " bytes, but says " +
            std::to_string(size) + (untyped ? "" : " elements"));
  }
  tensor->dtype = element->word;
  tensor->storage_begin = archive_.begin(bytes);
  tensor->storage_size = bytes.size() / element->bytes;
  return element->bytes;
}

// Checks each storage once, however many tensors share it.
std::string_view PtTensors::storage(std::string_view key) {
  const auto known = storages_.find(key);
  if (known != storages_.end()) return known->second;
  return storages_[key] = archive_.member("data/" + std::string(key));
}

// Checks that every element lies in the storage, and limits the size of expanded tensors.
void PtTensors::check_view(const PtTensor& tensor, uint64_t element_bytes,
                           const std::string& where) {
  if (tensor.sizes.size() != tensor.strides.size()) {
    damaged(where + " has " + std::to_string(tensor.sizes.size()) + " sizes and " +
            std::to_string(tensor.strides.size()) + " strides");
  }
  uint64_t last = tensor.offset, bytes = element_bytes;
  bool empty = false, overflow = false;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const auto size = static_cast<uint64_t>(std::max<int64_t>(tensor.sizes[i], 1));
    empty = empty || tensor.sizes[i] == 0;
    uint64_t reach = 0;
    overflow = overflow || __builtin_mul_overflow(bytes, size, &bytes) ||
               bytes > static_cast<uint64_t>(INT64_MAX) ||
               __builtin_mul_overflow(size - 1, static_cast<uint64_t>(tensor.strides[i]), &reach) ||
               __builtin_add_overflow(last, reach, &last);
  }
  if (overflow) damaged(where + " has a shape too large to exist");
  if (empty) return;
  if (last >= tensor.storage_size) {
    damaged(where + " reaches beyond its storage of " + std::to_string(tensor.storage_size) +
            " elements");
  }
  constexpr uint64_t kTimes = 16, kMore = 64 << 20;
  if (__builtin_add_overflow(total_bytes_, bytes, &total_bytes_) ||
      total_bytes_ / kTimes > archive_.size() + kMore / kTimes) {
    damaged(where + " and those before it would be many times larger than the file");
  }
}

}  // namespace lockstep::inline v0
