// Runs a policy that `proxrl export` wrote, with ONNX Runtime: the observations come from standard input, one per line, and
// their actions go to standard output. For feed-forward policies of vector observations.
//
//   g++ -std=c++17 onnx_policy.cpp -I INCLUDE -L LIB -lonnxruntime -o onnx_policy
//   echo "0.01 -0.02 0.03 0.04" | ./onnx_policy policy.onnx

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

template <typename Number>
void print(const Ort::Value& action) {
  const Number* numbers = action.GetTensorData<Number>();
  const std::size_t count = action.GetTensorTypeAndShapeInfo().GetElementCount();
  for (std::size_t i = 0; i < count; ++i) std::cout << (i ? " " : "") << numbers[i];
  std::cout << "\n";
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: onnx_policy policy.onnx\n";
    return 2;
  }
  // Reading the path this way is for Linux and macOS; on Windows, ONNX Runtime takes wide characters.
  Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "policy");
  Ort::Session session(environment, argv[1], Ort::SessionOptions{});
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const char* inputs[] = {"observation"};
  const char* outputs[] = {"action"};  // the most likely action; "logits", or "mean" and "log_std", allow sampling

  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::vector<float> observation{std::istream_iterator<float>(words), {}};
    const std::int64_t shape[] = {1, static_cast<std::int64_t>(observation.size())};  // a batch of one
    const auto input = Ort::Value::CreateTensor<float>(memory, observation.data(), observation.size(), shape, 2);
    const auto result = session.Run(Ort::RunOptions{}, inputs, &input, 1, outputs, 1);
    const auto type = result[0].GetTensorTypeAndShapeInfo().GetElementType();
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
      print<std::int64_t>(result[0]);
    } else {
      print<float>(result[0]);
    }
  }
}
