#include "lockstep/checkpoint/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/checkpoint/pickle_opcodes.h"
#include "lockstep/checkpoint/pickle_stack.h"
#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kMostBytes = 64 << 20;

class PickleMachine {
  using Op = PickleOp;
  using Use = PickleGlobal::Use;

 public:
  PickleMachine(std::string_view bytes, std::span<const PickleGlobal> allowed,
                const std::string& file)
      : bytes_(bytes), allowed_(allowed), file_(file), stack_(file) {}

  Pickle run() {
    if (bytes_.size() > kMostBytes) fail("its pickle is longer than 64 MiB");
    while (step(take<Op>())) {
    }
    return stack_.finish();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(file_ + ": " + what);
  }
  [[noreturn]] void damaged() const {
    fail("its pickle is damaged at byte " + std::to_string(at_));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail("holds " + what +
         ", and only tensors, dicts, lists, numbers and text are read, so that no Python code is "
         "run; write them alone, with torch.save(model.state_dict(), path)");
  }

  // Reads the next bytes of the pickle.
  std::string_view take(size_t size) {
    if (size > bytes_.size() - at_) damaged();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  template <class Number>
  Number take() {
    Number value;
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) damaged();
    const auto line = take(end - at_);
    take(1);
    return line;
  }

  // Returns false at the end.
  bool step(Op op) {
    switch (op) {
      case Op::kStop:
        return false;
      case Op::kProto:
        protocol(take<uint8_t>());
        return true;
      case Op::kNone:
        stack_.push({});
        return true;
      case Op::kNewTrue:
      case Op::kNewFalse:
        push_integer(PickleKind::kBool, op == Op::kNewTrue);
        return true;
      case Op::kBinInt:
        push_integer(PickleKind::kInteger, take<int32_t>());
        return true;
      case Op::kBinInt1:
        push_integer(PickleKind::kInteger, take<uint8_t>());
        return true;
      case Op::kBinInt2:
        push_integer(PickleKind::kInteger, take<uint16_t>());
        return true;
      case Op::kLong1:
        push_long(take(take<uint8_t>()));
        return true;
      case Op::kBinFloat:  // big-endian
        push_float(std::bit_cast<double>(__builtin_bswap64(take<uint64_t>())));
        return true;
      case Op::kBinUnicode:
        push_text(PickleKind::kText, take(take<uint32_t>()));
        return true;
      default:
        return step_container(op);
    }
  }

  bool step_container(Op op) {
    switch (op) {
      case Op::kMark:
        stack_.mark();
        return true;
      case Op::kEmptyTuple:
        push_items(PickleKind::kTuple, {});
        return true;
      case Op::kTuple1:
      case Op::kTuple2:
      case Op::kTuple3:
        push_items(PickleKind::kTuple,
                   stack_.pop(static_cast<size_t>(op) - static_cast<size_t>(Op::kTuple1) + 1));
        return true;
      case Op::kTuple:
        push_items(PickleKind::kTuple, stack_.pop_to_mark());
        return true;
      case Op::kEmptyList:
        push_items(PickleKind::kList, {});
        return true;
      case Op::kEmptyDict:
        push_items(PickleKind::kDict, {});
        return true;
      case Op::kAppend:
        add_items(PickleKind::kList, stack_.pop(1));
        return true;
      case Op::kAppends:
        add_items(PickleKind::kList, stack_.pop_to_mark());
        return true;
      case Op::kSetItem:
        add_items(PickleKind::kDict, stack_.pop(2));
        return true;
      case Op::kSetItems:
        add_items(PickleKind::kDict, stack_.pop_to_mark());
        return true;
      default:
        return step_reference(op);
    }
  }

  bool step_reference(Op op) {
    switch (op) {
      case Op::kBinPut:
        stack_.remember(take<uint8_t>());
        return true;
      case Op::kLongBinPut:
        stack_.remember(take<uint32_t>());
        return true;
      case Op::kBinGet:
        stack_.recall(take<uint8_t>());
        return true;
      case Op::kLongBinGet:
        stack_.recall(take<uint32_t>());
        return true;
      case Op::kGlobal:
        push_global();
        return true;
      case Op::kReduce:
        call();
        return true;
      case Op::kBuild:
        build();
        return true;
      case Op::kBinPersId:
        push_items(PickleKind::kPersistent, stack_.pop(1));
        return true;
      default:
        fail("its pickle has the opcode " + std::to_string(static_cast<int>(op)) + " at byte " +
             std::to_string(at_ - 1) +
             ", which torch.save does not use for tensors, or it is damaged; write it again with "
             "torch.save(model.state_dict(), path)");
    }
  }

  void protocol(int version) const {
    if (version == 2) return;
    fail("uses pickle protocol " + std::to_string(version) +
         "; write it with torch.save's own, which is 2");
  }

  void push_integer(PickleKind kind, int64_t integer) {
    stack_.push({.kind = kind, .integer = integer, .text = {}, .items = {}});
  }
  void push_float(double number) {
    stack_.push({.kind = PickleKind::kFloat, .number = number, .text = {}, .items = {}});
  }
  void push_text(PickleKind kind, std::string_view text, int64_t integer = 0) {
    stack_.push({.kind = kind, .integer = integer, .text = text, .items = {}});
  }
  void push_items(PickleKind kind, std::vector<uint32_t> items) {
    stack_.push({.kind = kind, .text = {}, .items = std::move(items)});
  }
  void push_long(std::string_view digits) {
    if (digits.size() > sizeof(int64_t)) return push_items(PickleKind::kBigInteger, {});
    // Little-endian two's complement: the higher bytes repeat the sign.
    int64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push_integer(PickleKind::kInteger, value);
  }

  void add_items(PickleKind kind, const std::vector<uint32_t>& items) {
    PickleValue& container = stack_.value(stack_.top());
    if (container.kind != kind) refuse("an object that is filled, " + described(container));
    if (kind == PickleKind::kDict && items.size() % 2 != 0) damaged();
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  void push_global() {
    std::string name(take_line());
    name += ' ';
    name += take_line();
    const auto found =
        std::find_if(allowed_.begin(), allowed_.end(),
                     [&](const PickleGlobal& global) { return global.name == name; });
    if (found == allowed_.end()) {
      std::replace(name.begin(), name.end(), ' ', '.');
      refuse("the Python object " + shown(name));
    }
    push_text(PickleKind::kGlobal, found->name, found - allowed_.begin());
  }

  void call() {
    const uint32_t arguments = stack_.pop();
    const PickleValue& callee = stack_.value(stack_.pop());
    const Use use = callee.kind == PickleKind::kGlobal
                        ? allowed_[static_cast<size_t>(callee.integer)].use
                        : Use::kNameOnly;
    if (use == Use::kNameOnly || stack_.value(arguments).kind != PickleKind::kTuple)
      refuse("a call of " + described(callee));
    if (use == Use::kCall)
      return stack_.push({.kind = PickleKind::kCall, .text = callee.text, .items = {arguments}});
    if (!stack_.value(arguments).items.empty())
      refuse("a call of " + described(callee) + " with arguments");
    push_items(PickleKind::kDict, {});
  }

  // Attributes of a dict, such as a state_dict's _metadata, contain nothing about its tensors.
  void build() {
    const uint32_t state = stack_.pop();
    const PickleValue& object = stack_.value(stack_.top());
    if (object.kind != PickleKind::kDict || stack_.value(state).kind != PickleKind::kDict)
      refuse("an object with attributes, " + described(object));
  }

  static std::string described(const PickleValue& value) {
    if (value.kind != PickleKind::kGlobal && value.kind != PickleKind::kCall)
      return "one without a name";
    std::string name(value.text);
    std::replace(name.begin(), name.end(), ' ', '.');
    return shown(name);
  }

  std::string_view bytes_;
  std::span<const PickleGlobal> allowed_;
  const std::string& file_;
  size_t at_ = 0;
  PickleStack stack_;
};

}  // namespace

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != PickleKind::kDict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {
    const PickleValue& candidate = values[dict.items[i - 2]];
    if (candidate.kind == PickleKind::kText && candidate.text == key)
      return &values[dict.items[i - 1]];
  }
  return nullptr;
}

Pickle read_pickle(std::string_view bytes, std::span<const PickleGlobal> allowed,
                   const std::string& file) {
  return PickleMachine(bytes, allowed, file).run();
}

}  // namespace lockstep::inline v0
