"""nn.DataParallel shows which part of the batch each replica is given."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
seen = []


class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.data = torch.randn(length, size)

    def __getitem__(self, index):
        return self.data[index]

    def __len__(self):
        return len(self.data)


class Model(nn.Module):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.fc = nn.Linear(input_size, output_size)

    def forward(self, input):
        output = self.fc(input)
        seen.append((str(input.device), input.size(0)))
        print("\tIn Model: input size", input.size(), "output size", output.size())
        return output


torch.manual_seed(0)
model = Model(5, 2)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
model.to(device)

outputs = []
for data in DataLoader(RandomDataset(5, 100), batch_size=30, shuffle=False, pin_memory=True):
    input = data.to(device)
    output = model(input)
    outputs.append(output.detach().cpu())
    print("Outside: input size", input.size(), "output_size", output.size())
outputs = torch.cat(outputs)
