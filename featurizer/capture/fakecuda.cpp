// Makes a CPU build of torch believe that a CUDA device exists, far enough to trace forward and backward of fake
// tensors on "cuda:0". It allocates nothing and launches nothing. It must be loaded before `import torch`: torch
// creates its CUDA hooks once, lazily.
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace {
using FakeCudaGuard = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, FakeCudaGuard);
}  // namespace

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const override { return 91900; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

namespace native {

// The values of at::SDPBackend.
constexpr int64_t kMath = 0, kFlash = 1, kEfficient = 2, kCudnn = 3;

// What scaled_dot_product_attention picks on a Hopper card with torch 2.11: half precision goes to cuDNN, with a mask
// or without; fp32, and a mask that learns, to the memory-efficient kernel; layouts that no fused kernel takes to the math
// composition.
static int64_t choose_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
    double, bool, std::optional<double>, bool enable_gqa) {
  const auto size = [](const c10::SymInt& s) { return s.guard_int(__FILE__, __LINE__); };
  const auto contiguous_rows = [&](const Tensor& t) { return size(t.sym_stride(-1)) == 1; };
  const bool half = query.scalar_type() == kHalf || query.scalar_type() == kBFloat16;
  if (query.dim() != 4 || !contiguous_rows(query) || !contiguous_rows(key) || !contiguous_rows(value)) return kMath;
  if (mask.has_value()) {
    if (!contiguous_rows(*mask)) return kMath;
    // Only the memory-efficient kernel returns a gradient for the mask.
    if (mask->requires_grad()) return enable_gqa ? kMath : kEfficient;
  }
  const int64_t head_dim = size(query.sym_size(-1)), value_dim = size(value.sym_size(-1));
  if (half && head_dim % 8 == 0 && value_dim % 8 == 0 && head_dim <= 128) return kCudnn;
  if (half && !mask.has_value() && head_dim <= 256) return kFlash;
  return enable_gqa ? kMath : kEfficient;
}
static RegisterCUDADispatch<struct _fused_sdp_choice_stub_DECLARE_DISPATCH_type> register_choice(
    _fused_sdp_choice_stub, choose_attention);

}  // namespace native
}  // namespace at
