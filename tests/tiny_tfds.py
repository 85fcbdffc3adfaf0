"""A data set on disk as TFDS prepares it, of a few random images."""

import io
import json
import pathlib

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2


def write(
    data_dir: pathlib.Path,
    name: str = 'cifar10',
    version: str = '3.0.2',
    *,
    shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    file_format: str = 'array_record',
    **counts: int,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes splits of so many examples, and returns their images and labels."""
    folder, rng, splits = data_dir / name / version, np.random.default_rng(0), {}
    folder.mkdir(parents=True)
    for split, count in counts.items():
        images = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        labels = rng.integers(0, classes, count, dtype=np.int32)
        path = folder / f'{name}-{split}.{file_format}-00000-of-00001'
        writer = ArrayRecordWriter(str(path), 'group_size:1')
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            encoded = io.BytesIO()
            Image.fromarray(image.squeeze()).save(encoded, 'png')
            example = tf_example_pb2.Example()
            features = example.features.feature
            features['id'].bytes_list.value.append(f'{split}_{number}'.encode())
            features['image'].bytes_list.value.append(encoded.getvalue())
            features['label'].int64_list.value.append(int(label))
            writer.write(example.SerializeToString())
        writer.close()
        splits[split] = images, labels
    (folder / 'features.json').write_text(json.dumps(_features(shape, classes)))
    about = [
        {
            'name': split,
            'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
            'numBytes': '1',
            'shardLengths': [str(count)],
        }
        for split, count in counts.items()
    ]
    info = {'name': name, 'version': version, 'fileFormat': file_format, 'splits': about}
    (folder / 'dataset_info.json').write_text(json.dumps(info))
    return splits


def _features(shape: tuple[int, ...], classes: int) -> dict:
    place = 'tensorflow_datasets.core.features'
    image = {
        'dtype': 'uint8',
        'encodingFormat': 'png',
        'shape': {'dimensions': [str(size) for size in shape]},
    }
    features = {
        'id': {'pythonClassName': f'{place}.text_feature.Text', 'text': {}},
        'image': {'pythonClassName': f'{place}.image_feature.Image', 'image': image},
        'label': {
            'pythonClassName': f'{place}.class_label_feature.ClassLabel',
            'classLabel': {'numClasses': str(classes)},
        },
    }
    kind = f'{place}.features_dict.FeaturesDict'
    return {'pythonClassName': kind, 'featuresDict': {'features': features}}
