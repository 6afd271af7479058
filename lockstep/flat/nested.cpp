#include "lockstep/flat/nested.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

namespace lockstep::inline v0::flat {
namespace {

// Visits the values, and returns whether one of them is another now.
template <typename Values, typename F>
bool visit_all(Values& values, const F& f) {
  bool changed = false;
  for (c10::IValue& value : values) {
    const c10::IValue before = value;
    for_each_tensor_of(value, f);
    changed |= !value.is(before);
  }
  return changed;
}

void visit_tuple(c10::IValue& value, const std::function<void(at::Tensor&)>& f) {
  std::vector<c10::IValue> elements = value.toTupleRef().elements().vec();
  if (!visit_all(elements, f)) return;
  const auto type = value.type()->cast<c10::TupleType>();
  value = type && type->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                                 : c10::ivalue::Tuple::create(std::move(elements));
}

void visit_list(c10::IValue& value, const std::function<void(at::Tensor&)>& f) {
  const c10::List<c10::IValue> list = value.toList();
  std::vector<c10::IValue> elements = list.vec();
  if (!visit_all(elements, f)) return;
  c10::List<c10::IValue> result(list.elementType());
  for (c10::IValue& element : elements) result.push_back(std::move(element));
  value = std::move(result);
}

void visit_dict(c10::IValue& value, const std::function<void(at::Tensor&)>& f) {
  const c10::Dict<c10::IValue, c10::IValue> dict = value.toGenericDict();
  std::vector<c10::IValue> elements;
  for (const auto& entry : dict) elements.push_back(entry.value());
  if (!visit_all(elements, f)) return;
  c10::Dict<c10::IValue, c10::IValue> result(dict.keyType(), dict.valueType());
  auto element = elements.begin();
  for (const auto& entry : dict) result.insert(entry.key(), std::move(*element++));
  value = std::move(result);
}

}  // namespace

void for_each_tensor_of(c10::IValue& value, const std::function<void(at::Tensor&)>& f) {
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    const at::Tensor before = tensor;
    f(tensor);
    if (!tensor.is_same(before)) value = std::move(tensor);
  } else if (value.isTuple()) {
    visit_tuple(value, f);
  } else if (value.isList()) {
    visit_list(value, f);
  } else if (value.isGenericDict()) {
    visit_dict(value, f);
  }
}

bool holds_object(const c10::IValue& value) {
  const auto any = [](const auto& elements) {
    return std::any_of(elements.begin(), elements.end(),
                       [](const c10::IValue& element) { return holds_object(element); });
  };
  if (value.isTuple()) return any(value.toTupleRef().elements());
  if (value.isList()) return any(value.toListRef());
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (holds_object(entry.value())) return true;
    }
    return false;
  }
  return value.isObject();
}

int64_t rows_of_first(const c10::IValue* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    int64_t rows = -1;
    c10::IValue value = values[i];
    for_each_tensor_of(value, [&rows](at::Tensor& tensor) {
      if (rows < 0 && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
    });
    if (rows >= 0) return rows;
  }
  return -1;
}

}  // namespace lockstep::inline v0::flat
