// SPDX-License-Identifier: MIT
// ATen's operators of CUDA tensors, run on the CPU over the same memory.
//
// Loaded once torch asks for devices (see devices.cpp), this replaces every kernel that torch registered for CUDA, but
// for those that only describe memory. Copies, fills and concatenations are queued on their stream as kernels are. All
// others wait for their stream, run at once and are not queued: simple, and the reason why an emulated program may wait
// where one on a GPU would not.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <set>

#include "emulator.h"

namespace {

using at::Tensor;
using c10::IValue;

// ---------------------------------------------------------------- memory and streams

// The same memory as a CPU tensor that owns nothing: a kernel, too, has addresses only.
Tensor on_host(const Tensor& x) {
  if (!x.defined()) return x;
  auto options = x.options().device(at::kCPU).requires_grad(false).pinned_memory(std::nullopt);
  Tensor view = at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
  view._set_conj(x.is_conj());
  view._set_neg(x.is_neg());
  return view;
}

Tensor if_cuda_on_host(const Tensor& x) { return x.defined() && x.is_cuda() ? on_host(x) : x; }

cudaStream_t current_stream(at::Device device) { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); }

void queue(at::Device device, Counter counter, Work work) {
  c10::cuda::CUDAGuard guard(device);
  auto without_autograd = [work = std::move(work)] {
    c10::InferenceMode mode(true);
    work();
  };
  emulated_launch(current_stream(device), without_autograd, counter);
}

void drain(at::Device device) {  // without being counted: the operator would not wait on a GPU
  c10::cuda::CUDAGuard guard(device);
  TORCH_CHECK(emulated_drain(current_stream(device)) == cudaSuccess, "emulated CUDA error: not in a captured graph");
}

void synchronize(at::Device device) {
  c10::cuda::CUDAGuard guard(device);
  auto error = cudaStreamSynchronize(current_stream(device));
  TORCH_CHECK(error == cudaSuccess, "emulated CUDA error ", int(error), ": operation not permitted while capturing");
}

// Pinned memory is not given to anybody else until the stream has come this far.
void keep_until_copied(const Tensor& pinned, at::Device device) {
  auto& storage = pinned.storage();
  auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  at::getHostAllocator(at::kCUDA)->record_event(
      const_cast<void*>(storage.data()), storage.data_ptr().get_context(), stream);
}

// ---------------------------------------------------------------- operators that are queued

Tensor& queued_copy(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.numel() == 0 && from.numel() == 0) return to;
  Tensor target = on_host(to), source = on_host(from);
  auto copy = [&] { return [target, source]() mutable { target.copy_(source); }; };
  if (to.is_cuda() && from.is_cuda()) {
    if (to.device() != from.device()) synchronize(from.device());
    queue(to.device(), KERNELS, copy());
  } else if (to.is_cuda()) {
    bool stays = non_blocking && from.is_pinned();
    if (!stays) source = source.clone();
    queue(to.device(), HOST_TO_DEVICE, copy());
    if (stays) keep_until_copied(from, to.device());
    if (!non_blocking) synchronize(to.device());
  } else {
    queue(from.device(), DEVICE_TO_HOST, copy());
    if (non_blocking && to.is_pinned()) {
      keep_until_copied(to, from.device());
    } else {
      synchronize(from.device());
    }
  }
  return to;
}

Tensor& queued_fill(Tensor& x, const at::Scalar& value) {
  if (x.numel()) queue(x.device(), KERNELS, [view = on_host(x), value]() mutable { view.fill_(value); });
  return x;
}

Tensor& queued_zero(Tensor& x) { return queued_fill(x, 0); }

Tensor& queued_cat(const at::ITensorListRef& tensors, int64_t dim, Tensor& out) {
  int64_t along = dim < 0 ? dim + out.dim() : dim, start = 0;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const Tensor& x : tensors.materialize()) {
    TORCH_CHECK(x.device() == out.device(), "cat: tensors are on ", x.device(), " and ", out.device());
    if (x.numel() == 0) continue;
    int64_t length = x.size(along);
    copies.emplace_back(on_host(out).narrow(along, start, length), on_host(x));
    start += length;
  }
  TORCH_CHECK(out.numel() == 0 || out.size(along) == start, "cat: an out= that has to be resized is not emulated");
  queue(out.device(), KERNELS, [copies]() mutable {
    for (auto& [target, source] : copies) target.copy_(source);
  });
  return out;
}

// ---------------------------------------------------------------- all other operators

// The device that an operator works on: that of its first CUDA tensor, else of its `device` argument, else the current.
at::Device device_of(const std::vector<IValue>& arguments) {
  std::optional<at::Device> named;
  for (auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().is_cuda()) {
      return argument.toTensor().device();
    }
    if (argument.isList()) {
      for (const IValue& element : argument.toListRef()) {
        if (element.isTensor() && element.toTensor().is_cuda()) return element.toTensor().device();
      }
    }
    if (argument.isDevice() && argument.toDevice().is_cuda()) named = argument.toDevice();
  }
  if (named && named->has_index()) return *named;
  return at::Device(at::kCUDA, c10::cuda::current_device());
}

IValue list_on_host(const IValue& list) {
  if (list.isTensorList()) {
    std::vector<Tensor> views;
    for (const Tensor& x : list.toTensorVector()) views.push_back(if_cuda_on_host(x));
    return views;
  }
  c10::List<std::optional<Tensor>> views;  // such as the indices of x[i, :, j]
  for (const IValue& element : list.toListRef()) {
    views.push_back(element.isTensor() ? std::make_optional(if_cuda_on_host(element.toTensor())) : std::nullopt);
  }
  return views;
}

IValue argument_on_host(const IValue& argument, const std::string& name) {
  if (argument.isTensor()) return if_cuda_on_host(argument.toTensor());
  if (argument.isDevice() && argument.toDevice().is_cuda()) return at::Device(at::kCPU);
  if (name == "pin_memory") return IValue();
  bool has_tensors = argument.isTensorList() || argument.isOptionalTensorList();
  return has_tensors ? list_on_host(argument) : argument;
}

Tensor to_device(const Tensor& x, at::Device device) {
  if (!x.defined() || !x.device().is_cpu()) return x;
  auto options = x.options().device(device);
  if (x.is_sparse()) {
    Tensor indices = to_device(x._indices(), device), values = to_device(x._values(), device);
    return at::_sparse_coo_tensor_unsafe(indices, values, x.sizes(), options, x.is_coalesced());
  }
  if (x.is_sparse_csr()) {
    Tensor rows = to_device(x.crow_indices(), device), columns = to_device(x.col_indices(), device);
    return at::_sparse_csr_tensor_unsafe(rows, columns, to_device(x.values(), device), x.sizes(), options);
  }
  if (x.is_quantized()) {
    Tensor moved = at::_empty_affine_quantized(x.sizes(), options, x.q_scale(), x.q_zero_point());
    memcpy(moved.data_ptr(), x.data_ptr(), x.nbytes());
    return moved;
  }
  Tensor moved = at::empty_strided(x.sizes(), x.strides(), options);
  if (x.numel()) on_host(moved).copy_(x);
  return moved;
}

IValue result_to_device(const IValue& result, at::Device device) {
  if (result.isTensor()) return to_device(result.toTensor(), device);
  if (!result.isTensorList()) return result;
  std::vector<Tensor> moved;
  for (const Tensor& x : result.toTensorVector()) moved.push_back(to_device(x, device));
  return moved;
}

// The argument that a result is another name of, such as `self` in `add_`; none if the result is a new tensor.
std::optional<size_t> written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!result.alias_info() || !result.alias_info()->isWrite()) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    auto* alias = schema.arguments()[i].alias_info();
    if (alias && *alias == *result.alias_info()) return i;
  }
  return std::nullopt;
}

// An empty `out=` is resized by the operator: it gets a CPU tensor instead, whose content is copied afterwards.
bool is_empty_out(const c10::Argument& argument, const IValue& value) {
  bool is_written = argument.alias_info() && argument.alias_info()->isWrite() && argument.name() != "self";
  if (!is_written || !value.isTensor()) return false;
  const Tensor& x = value.toTensor();
  return x.defined() && x.is_cuda() && x.numel() == 0;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  std::vector<IValue> given(stack->end() - count, stack->end());
  at::Device device = device_of(given);
  drain(device);

  stack->resize(stack->size() - count);
  std::map<size_t, Tensor> outs;
  for (size_t i = 0; i < count; i++) {
    const auto& argument = schema.arguments()[i];
    if (is_empty_out(argument, given[i])) {
      outs[i] = at::empty({0}, given[i].toTensor().options().device(at::kCPU));
      stack->push_back(outs[i]);
    } else {
      stack->push_back(argument_on_host(given[i], argument.name()));
    }
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
  }
  counters[KERNELS]++;
  for (auto& [i, filled] : outs) {
    Tensor out = given[i].toTensor();
    out.resize_(filled.sizes());
    if (filled.numel()) on_host(out).copy_(filled);
  }
  const size_t results = schema.returns().size();
  for (size_t i = 0; i < results; i++) {
    IValue& result = (*stack)[stack->size() - results + i];
    auto written = written_argument(schema, schema.returns()[i]);
    result = written ? given[*written] : result_to_device(result, device);
  }
}

// ---------------------------------------------------------------- registration

const std::set<std::string> AS_IN_TORCH = {  // they describe memory, or call the runtime
    "_copy_from", "_copy_from_and_resize", "_efficientzerotensor", "_has_same_storage_numel", "_local_scalar_dense",
    "_nested_view_from_buffer", "_pin_memory", "_reshape_alias", "_resize_output_", "as_strided", "empty",
    "empty_strided", "is_pinned", "is_set_to", "lift", "lift_fresh", "record_stream", "resize_", "set_", "unfold",
    "view", "view_as_complex", "view_as_real",
};

struct Quiet : c10::WarningHandler {  // torch warns of each kernel that is replaced
  void process(const c10::Warning&) override {}
};

struct Registration {
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};

  Registration() {
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    auto registered = c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::CUDA);
    for (const c10::OperatorName& name : registered) replace(name);
    library.impl("copy_", queued_copy);
    library.impl("fill_.Scalar", queued_fill);
    library.impl("zero_", queued_zero);
    library.impl("cat.out", queued_cat);
  }

  void replace(const c10::OperatorName& name) {
    static const std::set<std::string> queued = {"copy_", "fill_.Scalar", "zero_", "cat.out"};
    if (name.name.rfind("aten::", 0) != 0) return;
    std::string short_name = name.name.substr(6);
    bool is_of_a_library = short_name.find("cudnn") != std::string::npos || short_name.find("miopen") == 0;
    std::string full_name = short_name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (AS_IN_TORCH.count(short_name) || queued.count(full_name) || is_of_a_library) return;
    library.impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
};

auto& registration = *new Registration;  // never destroyed: torch may run until the process is gone

}  // namespace
